// Step 2: the k smallest finite losses, ties to the lower row; exactly numpy.argsort(kind="stable")[:k].
//
// Small batches, in one block: every row counts the keys that come before its own. Larger ones: a radix search for the
// k-th smallest key, eight bits a sweep, then one sweep that writes the choice; in one block, or in a cluster whose
// blocks take a slice of the rows each. No thread's timing can change a result: the only atomics are integer additions.
#pragma once

#include "../ranked_rows.h"
#include "cluster.cuh"
#include "linked_launch.cuh"
#include "reductions.cuh"
#include "row_mapping.h"

namespace jocor_fast::cuda {

constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kNoDigit = kDigits;  // of a row that is not counted
template <class Bits>
constexpr int kLeadingShift = sizeof(Bits) * 8 - kDigitBits;
constexpr int kRowsAtOnce = 4;  // whose loads are under way together in a sweep

// Counters of a sweep: keys by their digit; in the first one also two kinds of rows.
constexpr int kEligibleRows = kDigits, kFiniteRows = kDigits + 1, kCounters = kDigits + 2;

// Keys of a block up to 32 KB are read from memory once.
template <class Bits>
constexpr int kCachedKeys = 32768 / sizeof(Bits);

template <class Bits>
struct CountingScratch {
  Bits keys[kCountingRows];
  double sums[kMaxWarps];
};

template <class Bits>
struct RadixScratch {
  Bits keys[kCachedKeys<Bits>];
  uint32_t counters[sizeof(Bits)][kCounters];  // one line a sweep, so that clearing one needs no barrier of its own
  uint32_t of_cluster[kCounters];              // a line's sums over the blocks
  uint32_t ties_of_warp[2][kMaxWarps];
  int predictions_differ;
  double sums[kMaxWarps];
  double sums_of_blocks[kClusterBlocks];  // of the cluster's first block: what each has added up
};

// The rows that a block looks at.
struct Slice {
  int64_t first, end;
};

// Whether only rows whose predictions differ are eligible; `any_differ()` finds out whether there are any.
template <class AnyDiffer>
__device__ __forceinline__ bool only_differing_rows(const SelectionParams& params, AnyDiffer any_differ) {
  if (params.disagreement == Disagreement::ignored || params.row_state == nullptr) return false;
  return params.disagreement == Disagreement::required || any_differ();
}

// Whether they do in a row of this slice. Every thread must call this.
__device__ __forceinline__ bool any_differ_in(const SelectionParams& params, Slice slice) {
  int found = 0;
#pragma unroll 1
  for (int64_t row = slice.first + threadIdx.x; row < slice.end; row += blockDim.x) {
    found |= params.row_state[row] == kEligibleAndPredictionsDiffer;
  }
  return __syncthreads_or(found) != 0;
}

template <class Real>
__device__ __forceinline__ double value_of(const SelectionParams& params, int64_t row) {
  return params.mean_of != nullptr ? static_cast<double>(static_cast<const Real*>(params.mean_of)[row]) : 0.0;
}

// A sum over the block of each thread's share, which is of the rows that it chose.
__device__ __forceinline__ double sum_of_block(double share, double* scratch) {
  double sum[1] = {share};
  reduce_block(sum, 0.0, Sum{}, scratch);
  return sum[0];
}

// --- by counting ----------------------------------------------------------------------------------------------------

// How many threads share the counting of one row: the largest power of two that the block has for each row. Its
// logarithm, for threads are shifted faster than they are divided.
__device__ __forceinline__ int log_lanes_of_counting(int rows) {
  int log_lanes = 5;
  while (log_lanes > 0 && (rows << log_lanes) > static_cast<int>(blockDim.x)) --log_lanes;
  return log_lanes;
}

// At most kCountingRows rows, with every thread of the block.
template <class Real>
__device__ __forceinline__ void select_by_counting(const SelectionParams& params,
                                                   CountingScratch<typename OrderBits<Real>::type>& scratch) {
  using Rows = RankedRows<Real>;
  using Bits = typename Rows::Bits;
  const RowsToKeep to_keep(params);
  const Rows ranked(params, only_differing_rows(params, [&] { return any_differ_in(params, {0, params.rows}); }));
  const int rows = static_cast<int>(params.rows), threads = blockDim.x;
  int64_t eligible = 0, finite = 0;
  for (int first = 0; first < rows; first += threads) {
    const int row = first + threadIdx.x;
    Bits key[1] = {Rows::kNoCandidate};
    bool is_eligible[1] = {};
    if (row < rows) {
      ranked.load({row}, key, is_eligible);
      scratch.keys[row] = key[0];
    }
    eligible += __syncthreads_count(is_eligible[0]);
    finite += __syncthreads_count(key[0] != Rows::kNoCandidate);  // and all keys are written before any is read
  }
  const int64_t k = to_keep.of(eligible, finite);

  const int log_lanes = log_lanes_of_counting(rows), lanes = 1 << log_lanes, lane = threadIdx.x & (lanes - 1);
  double share = 0;
  for (int first = 0; first < rows; first += threads >> log_lanes) {
    const int row = first + (threadIdx.x >> log_lanes);
    const Bits key = row < rows ? scratch.keys[row] : Rows::kNoCandidate;
    int before = 0;
    for (int other = lane; other < rows; other += lanes) {
      const Bits other_key = scratch.keys[other];
      before += other_key < key || (other_key == key && other < row);
    }
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
      before += __shfl_xor_sync(kWholeWarp, before, distance);
    }
    if (lane != 0 || row >= rows) continue;
    const bool chosen = key != Rows::kNoCandidate && before < k;
    params.selected[row] = chosen;
    if (chosen) share += value_of<Real>(params, row);
  }
  const double sum = sum_of_block(share, scratch.sums);
  if (threadIdx.x == 0) write_numbers<Real>(params, k, eligible, finite, sum);
}

// --- by radix -------------------------------------------------------------------------------------------------------

__device__ __forceinline__ Slice slice_of_block(int64_t rows, Cluster cluster) {
  // A warp's keys begin at a whole number of cache lines, as the batch does. In 32 bits, for 64 divide slowly.
  const uint32_t warps = static_cast<uint32_t>((rows + kWarp - 1) / kWarp), blocks = cluster.blocks;
  const uint32_t of_block = warps / blocks + (warps % blocks != 0);
  const int64_t size = int64_t{of_block} * kWarp;
  const int64_t first = Min{}(cluster.rank * size, rows);
  return {first, Min{}(first + size, rows)};
}

// any_differ_in of all blocks; `finding` lies in shared memory. Every thread must call this.
__device__ __forceinline__ bool any_differ_in_cluster(const SelectionParams& params, Slice slice, int* finding,
                                                      Cluster cluster) {
  const bool in_slice = any_differ_in(params, slice);
  if (threadIdx.x == 0) *finding = in_slice;
  cluster.sync();  // every block's finding is written before any is read
  int found = 0;
#pragma unroll 1
  for (int block = 0; block < cluster.blocks; ++block) found |= *cluster.shared_of(block, finding);
  return found != 0;
}

// Where the counter of a digit stands: those of the digits that one lane adds up in find_digit lie a bank apart from
// its neighbours', for 32 lanes that read eight words in a row each would wait eight times for one another.
__device__ __forceinline__ int slot_of(int digit) {
  constexpr int per_lane = kDigits / kWarp;
  return digit % per_lane * kWarp + digit / per_lane;
}

// Counts a digit of each lane, or kNoDigit. Losses share their leading digits, and 32 additions to one counter take
// turns: so lanes with the digit of the first one add once, then those with the digit of the first that is left.
__device__ __forceinline__ void count_digit(uint32_t* counters, int digit) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const unsigned left = __ballot_sync(kWholeWarp, digit != kNoDigit);
    if (left == 0) return;
    const int first = __ffs(left) - 1;
    const int shared = __shfl_sync(kWholeWarp, digit, first);
    const unsigned same = __ballot_sync(kWholeWarp, digit == shared);
    if (lane_of_thread() == first) atomicAdd(&counters[slot_of(shared)], __popc(same));
    if (digit == shared) digit = kNoDigit;
  }
  if (digit != kNoDigit) atomicAdd(&counters[slot_of(digit)], 1u);
}

// Adds up a number of each thread. The whole warp must take part.
__device__ __forceinline__ void add_to_counter(uint32_t* counter, uint32_t of_thread) {
  const uint32_t of_warp = reduce_lanes<kWarp>(of_thread, Sum{});
  if (lane_of_thread() == 0) atomicAdd(counter, of_warp);
}

// The counters of a sweep over all blocks. Every thread must call this when it has counted.
template <class Bits>
__device__ __forceinline__ const uint32_t* add_up_counters(RadixScratch<Bits>& scratch, int sweep, Cluster cluster) {
  cluster.sync();  // every row is counted before any counter is read
  if (cluster.blocks == 1) return scratch.counters[sweep];
#pragma unroll 1  // once or twice: to unroll it takes a division
  for (int i = threadIdx.x; i < kCounters; i += blockDim.x) {
    uint32_t of_blocks[kClusterBlocks], sum = 0;
#pragma unroll
    for (int block = 0; block < kClusterBlocks; ++block) {  // a load without a condition waits for no other
      of_blocks[block] = cluster.shared_of(block < cluster.blocks ? block : 0, scratch.counters[sweep])[i];
    }
#pragma unroll
    for (int block = 0; block < kClusterBlocks; ++block) sum += block < cluster.blocks ? of_blocks[block] : 0;
    scratch.of_cluster[i] = sum;  // those of the sweep before were read before the barrier above
  }
  __syncthreads();  // every counter is added up before any sum is read
  return scratch.of_cluster;
}

struct Digit {
  int value;
  uint32_t before;  // counted with a smaller digit
  uint32_t count;   // counted with this one
};

// The digit of the `remaining`-th smallest counted key. Each warp finds it for itself, which saves a barrier.
__device__ __forceinline__ Digit find_digit(const uint32_t* counters, uint32_t remaining) {
  constexpr int per_lane = kDigits / kWarp;
  const int lane = lane_of_thread();
  uint32_t counts[per_lane], total = 0;
#pragma unroll
  for (int i = 0; i < per_lane; ++i) total += counts[i] = counters[slot_of(lane * per_lane + i)];
  uint32_t up_to_here = total;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const uint32_t other = __shfl_up_sync(kWholeWarp, up_to_here, distance);
    if (lane >= distance) up_to_here += other;
  }
  Digit digit{lane * per_lane, up_to_here - total, counts[0]};
#pragma unroll
  for (int i = 1; i < per_lane; ++i) {
    if (digit.before + digit.count < remaining) digit = {lane * per_lane + i, digit.before + digit.count, counts[i]};
  }
  const int owner = __ffs(__ballot_sync(kWholeWarp, up_to_here >= remaining)) - 1;
  return {__shfl_sync(kWholeWarp, digit.value, owner), __shfl_sync(kWholeWarp, digit.before, owner),
          __shfl_sync(kWholeWarp, digit.count, owner)};
}

// Calls body(row, key, is eligible) with every thread, for kRowsAtOnce rows after load(rows, keys, are eligible). Past
// the last row the key is kNoCandidate; what is loaded there is the last row once more, so that no load waits for a
// branch.
template <class Real, class Load, class Body>
__device__ __forceinline__ void sweep(Slice slice, Load load, Body body) {
  using Rows = RankedRows<Real>;
  const int64_t threads = blockDim.x;
  for (int64_t first = slice.first + threadIdx.x; first - threadIdx.x < slice.end; first += kRowsAtOnce * threads) {
    int64_t rows[kRowsAtOnce];
    typename Rows::Bits keys[kRowsAtOnce];
    bool are_eligible[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) rows[i] = Min{}(first + i * threads, slice.end - 1);
    load(rows, keys, are_eligible);
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const int64_t row = first + i * threads;
      const bool exists = row < slice.end;
      body(row, exists ? keys[i] : Rows::kNoCandidate, exists && are_eligible[i]);
    }
  }
}

// Rows with a key below `key` are chosen, and the first `ties` of those that have it.
template <class Bits>
struct Threshold {
  Bits key;
  uint32_t ties;
  bool all_ties;         // they are all that have it, so that their order does not matter
  uint32_t ties_before;  // of those that have it, in the slices before this block's; 0 where all are chosen
};

// That of the k smallest keys, where there are more than k. `counters`: of the leading digits, already counted. Every
// thread must call this.
template <class Real, class Load, class Bits>
__device__ __forceinline__ Threshold<Bits> find_threshold(Slice slice, Load load, int64_t k, const uint32_t* counters,
                                                          RadixScratch<Bits>& scratch, Cluster cluster) {
  Bits prefix = 0, known = 0;  // the digits of the k-th smallest key that are found, and where they stand
  int shift = kLeadingShift<Bits>;
  uint32_t remaining = static_cast<uint32_t>(k);
  for (int sweeps = 1;; ++sweeps) {
    const Digit digit = find_digit(counters, remaining);
    remaining -= digit.before;
    prefix |= static_cast<Bits>(digit.value) << shift;
    known |= static_cast<Bits>(kDigits - 1) << shift;
    const bool all = digit.count == remaining;  // of the keys with this prefix, so that no digit below decides
    if (all || shift == 0) {
      Threshold<Bits> threshold{static_cast<Bits>(prefix | (all ? ~known : Bits{0})), remaining, all, 0};
#pragma unroll 1
      for (int block = 0; !all && block < cluster.rank; ++block) {
        threshold.ties_before += cluster.shared_of(block, scratch.counters[sweeps - 1])[slot_of(digit.value)];
      }
      return threshold;
    }
    shift -= kDigitBits;
    sweep<Real>(slice, load, [&](int64_t, Bits key, bool) {
      const bool counts = key != RankedRows<Real>::kNoCandidate && (key & known) == prefix;
      count_digit(scratch.counters[sweeps], counts ? static_cast<int>(key >> shift) & (kDigits - 1) : kNoDigit);
    });
    counters = add_up_counters(scratch, sweeps, cluster);
  }
}

// Writes the choice; returns this thread's share of the sum. Every thread must call this.
template <class Real, class Load, class Bits>
__device__ __forceinline__ double write_choice(const SelectionParams& params, Slice slice, Load load,
                                               Threshold<Bits> threshold, uint32_t (*ties_of_warp)[kMaxWarps]) {
  const int lane = lane_of_thread(), warp = warp_of_thread(), warps = warps_of_block();
  uint32_t ties_before = threshold.ties_before;  // also in the chunks of rows that were swept
  int parity = 0;
  double share = 0;
  sweep<Real>(slice, load, [&](int64_t row, Bits key, bool) {
    bool chosen = key < threshold.key || (threshold.all_ties && key == threshold.key);
    if (!threshold.all_ties) {
      const bool tie = key == threshold.key;
      const unsigned ties = __ballot_sync(kWholeWarp, tie);
      if (lane == 0) ties_of_warp[parity][warp] = __popc(ties);
      // Each warp's count is written before any is read. The next chunk writes the other half, and whoever writes this
      // half again has passed that chunk's barrier, before which all had read here.
      __syncthreads();
      const uint32_t of_lane = lane < warps ? ties_of_warp[parity][lane] : 0;
      const uint32_t in_earlier_warps = reduce_lanes<kWarp>(lane < warp ? of_lane : 0, Sum{});
      const uint32_t in_chunk = reduce_lanes<kWarp>(of_lane, Sum{});
      const uint32_t in_earlier_lanes = __popc(ties & ((1u << lane) - 1));
      chosen = chosen || (tie && ties_before + in_earlier_warps + in_earlier_lanes < threshold.ties);
      ties_before += in_chunk;
      parity ^= 1;
    }
    if (row >= slice.end) return;
    chosen = chosen && key != RankedRows<Real>::kNoCandidate;
    if (chosen) share += value_of<Real>(params, row);
    params.selected[row] = chosen;
  });
  return share;
}

// Rows fewer than 2^32. One block, or the blocks of one cluster.
template <class Real>
__device__ __forceinline__ void select_by_radix(const SelectionParams& params,
                                                RadixScratch<typename OrderBits<Real>::type>& scratch) {
  using Rows = RankedRows<Real>;
  using Bits = typename Rows::Bits;
  const Cluster cluster = cluster_of_block();
  const Slice slice = slice_of_block(params.rows, cluster);
#pragma unroll 1
  for (int i = threadIdx.x; i < int(sizeof(Bits)) * kCounters; i += blockDim.x) scratch.counters[0][i] = 0;
  const RowsToKeep to_keep(params);
  const Rows ranked(params, only_differing_rows(params, [&] {
                      return any_differ_in_cluster(params, slice, &scratch.predictions_differ, cluster);
                    }));
  __syncthreads();  // the counters are clear before any row is counted

  // First sweep: how many rows are eligible, how many finite, and the leading digit, which needs no k.
  const bool cached = slice.end - slice.first <= kCachedKeys<Bits>;
  uint32_t eligible_of_thread = 0, finite_of_thread = 0;
  const auto from_memory = [&](const auto& rows, auto& keys, auto& are_eligible) {
    ranked.load(rows, keys, are_eligible);
  };
  sweep<Real>(slice, from_memory, [&](int64_t row, Bits key, bool is_eligible) {
    if (cached && row < slice.end) scratch.keys[row - slice.first] = key;
    eligible_of_thread += is_eligible;
    const bool candidate = key != Rows::kNoCandidate;
    finite_of_thread += candidate;
    count_digit(scratch.counters[0], candidate ? static_cast<int>(key >> kLeadingShift<Bits>) : kNoDigit);
  });
  add_to_counter(&scratch.counters[0][kEligibleRows], eligible_of_thread);
  add_to_counter(&scratch.counters[0][kFiniteRows], finite_of_thread);
  const uint32_t* counters = add_up_counters(scratch, 0, cluster);
  const int64_t eligible = counters[kEligibleRows], finite = counters[kFiniteRows];
  const int64_t k = to_keep.of(eligible, finite);
  const auto load = [&](const auto& rows, auto& keys, auto& are_eligible) {
    if (!cached) return from_memory(rows, keys, are_eligible);
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) keys[i] = scratch.keys[rows[i] - slice.first];
  };

  Threshold<Bits> threshold{Rows::kNoCandidate, 0, true, 0};  // all candidates
  if (k == 0) threshold.key = 0;                              // none: no finite loss has key 0
  if (k > 0 && k < finite) threshold = find_threshold<Real>(slice, load, k, counters, scratch, cluster);
  double sum = sum_of_block(write_choice<Real>(params, slice, load, threshold, scratch.ties_of_warp), scratch.sums);
  if (cluster.blocks > 1) {
    if (threadIdx.x == 0) *cluster.shared_of(0, &scratch.sums_of_blocks[cluster.rank]) = sum;
    cluster.sync();  // all sums have arrived; and no block reads another's memory any more, so that each may end
    sum = 0;
#pragma unroll 1
    for (int block = 0; cluster.rank == 0 && block < cluster.blocks; ++block) sum += scratch.sums_of_blocks[block];
  }
  if (cluster.rank == 0 && threadIdx.x == 0) write_numbers<Real>(params, k, eligible, finite, sum);
}

// --- kernels --------------------------------------------------------------------------------------------------------

template <class Real>
__global__ void __launch_bounds__(kSelectionThreads, 1)
    selection_by_counting(const __grid_constant__ SelectionParams params) {
  __shared__ CountingScratch<typename OrderBits<Real>::type> scratch;
  wait_for_previous_kernel();
  select_by_counting<Real>(params, scratch);
}

template <class Real>
__global__ void __launch_bounds__(kSelectionThreads, 1)
    selection_by_radix(const __grid_constant__ SelectionParams params) {
  __shared__ RadixScratch<typename OrderBits<Real>::type> scratch;
  wait_for_previous_kernel();
  select_by_radix<Real>(params, scratch);
}

}  // namespace jocor_fast::cuda
