// Which threads work on which columns of a row: the one table that the launchers and the tuning script read.
#pragma once

#include <cstdint>

namespace jocor_fast::cuda {

struct RowMapping {
  int64_t classes_up_to;
  int lanes;    // threads that share a row
  int columns;  // of each network that a lane holds in registers
  int threads;  // in a block
};

// A row in registers is read once. A lane holds whole chunks of 16 bytes (kChunk), which are 8 columns in half
// precision: that skips the first line. Each line's reason (lanes x columns):
//   4 x 4:   10 and 14 classes, as most of the paper's data sets have: of the next line's 600 instructions a quarter is
//            for columns beyond 16 (counted from nvcc's code).
//   4 x 8:   a 16-byte load a lane covers half-precision rows of 32 classes whole, and two shuffles reduce a row; a
//            warp per row would leave 22 of its 32 lanes idle at 10 classes.
//   32 x 8:  CIFAR-100 and the like: 16 logits a lane, and many warps fit on a multiprocessor.
//   32 x 32: 64 logits a lane, and as many exponentials, are what float32 can hold without spilling.
// Longer rows go to a whole block that loops over them and reads them twice, the second time mostly from the cache.
// The limits follow from the register file; which of two neighbours is faster near its limit is not measured yet:
// `python benchmarks/tune_mapping.py` measures it on the GPU at hand, and prints this table and the limits below.
constexpr RowMapping kRowMappings[] = {
    {16, 4, 4, 128},
    {32, 4, 8, 128},
    {256, 32, 8, 128},
    {1024, 32, 32, 128},
};
constexpr int kMappings = sizeof(kRowMappings) / sizeof(kRowMappings[0]);
constexpr int kBlockRowThreads = 256;  // of a block that loops over one row
// Such blocks per multiprocessor in the gradient's launch bounds: 4 x 256 threads leave 64 registers each; with the 40
// that 6 would leave, float32 spills.
constexpr int kGradientBlocks = 4;

// Most bytes that a lane may hold of one network's logits, in the type they are computed in: 32 float32. The last line
// of the table exceeds it in float64, and a block loops over such rows.
constexpr int kRegisterBytes = 128;

// One launch does rows and selection if one block needs at most this many rounds over the batch: with more, its rounds
// cost about what a second, linked launch does (estimated, not measured). It takes the lines of the table with up to 8
// columns a lane, which fit into the 64 registers that a thread of a full block may have.
constexpr int kSingleBlockRounds = 4;
constexpr int kSingleBlockColumns = 8;

// Batches up to this size are selected by counting, larger ones by radix. Counting does rows^2 comparisons, of some
// three instructions in nvcc's code: at 256 some 3,000 cycles of one multiprocessor, about what a radix search of so
// few rows takes, at 512 some 12,000 (counted from the code, not measured).
constexpr int64_t kCountingRows = 256;
constexpr int kCountingThreads = 1024;  // at most

// A thread of the radix search has this many rows, whose keys stay in its registers: up to 8,192 in a block, 65,536 in
// a cluster of eight. Many rows for few threads, for a block's instructions are what a selection waits for, and a warp
// issues some 500 whether each of its threads has one row or eight: at 4096 rows some 4,000 cycles in all (counted from
// nvcc's code for 9.0, not measured).
constexpr int kRowsInRegisters = 8;
constexpr int kRadixThreads = 1024;  // at most

// Up to this size the radix search takes one block, above it the eight of a cluster. These wait for one another about
// as long as a full block takes for its instructions, for any number of rows (estimated). Each sweep has one such
// barrier, and its arrival, which releases at the scope of the cluster, compiles to MEMBAR.ALL.GPU and CCTL.IVALL: it
// flushes the L1 cache, from which slices of more than 8,192 rows read their losses again. The estimate leaves that
// out, so `python benchmarks/tune_mapping.py` measures this limit first.
constexpr int64_t kOneBlockRows = 8192;

}  // namespace jocor_fast::cuda
