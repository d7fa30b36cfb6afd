// The selection of a larger batch: a survey of the keys, a radix search for the k-th smallest of them, eight bits a
// sweep over the rows, then one sweep that writes the choice. It runs in one block, or in a cluster whose blocks take a
// slice of the rows each. The search starts at the highest bit of the distance between the lowest and the highest key
// (the leading bits of most losses are alike) and ends early where no further bit decides: at most sizeof(Bits) sweeps.
#pragma once

#include "cluster.cuh"
#include "launches.h"
#include "row_mapping.h"
#include "selection.cuh"

namespace jocor_fast::cuda {

constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kNoDigit = kDigits;       // the counter of keys outside the range that is searched
constexpr int kCounters = kDigits + 4;  // of a line: kDigits + 1, rounded up to 16 bytes

struct Digit {
  uint32_t value;
  uint32_t before;  // keys with a smaller digit
  uint32_t count;   // with this one
};

// What the first sweep over the rows finds.
template <class Bits>
struct Candidates {
  Bits lowest;
  Bits end;  // after the highest
  uint32_t finite;
  uint32_t eligible;

  __device__ __forceinline__ static Candidates none() { return {~Bits{0}, 0, 0, 0}; }
};

template <class Bits>
struct RadixScratch {
  alignas(16) uint32_t counters[sizeof(Bits)][kCounters];  // a line for each sweep: all are cleared at once
  alignas(16) uint32_t of_cluster[kDigits];                // a line's sums over the blocks
  Digit digit;                                             // found by the sweep
  Candidates<Bits> of_warp[kMaxWarps], of_block;
  uint32_t ties_of_warp[2][kRowsInRegisters][kMaxWarps];
  int predictions_differ;
  double sums[kMaxWarps];
  double sums_of_blocks[kClusterBlocks];  // of the cluster's first block: what each has added up
};

// --- rows -----------------------------------------------------------------------------------------------------------

// Threads of each of the `blocks` that share the rows.
inline int threads_of_radix(int64_t rows, int blocks) {
  return threads_in_whole_warps(divide_up(rows, int64_t{blocks} * kRowsInRegisters), kRadixThreads);
}

// Rows of the largest slice. Slices are whole warps of rows: each begins at a cache line, as the batch does. Computed
// in 32 bits, for 64-bit divisions are slow.
__device__ __forceinline__ int64_t rows_of_slice(int64_t rows, int blocks) {
  const uint32_t warps = static_cast<uint32_t>((rows + kWarp - 1) / kWarp), by = static_cast<uint32_t>(blocks);
  return int64_t{warps / by + (warps % by != 0)} * kWarp;
}

__device__ __forceinline__ Slice slice_of_block(int64_t rows, Cluster cluster) {
  const int64_t size = rows_of_slice(rows, cluster.blocks), first = Min{}(cluster.rank * size, rows);
  return {first, Min{}(first + size, rows)};
}

// In both classes below sweep(body) calls body(rows, keys, eligible) with every thread for kRows of its rows at a time,
// whose loads are in flight together; rows that cannot be chosen or do not exist have the key kNoCandidate. Rows are
// counted in 32 bits from the first of a round: a GPU computes 64 in twice the instructions or more, and the
// instructions of a block are what a selection waits for.

// For a slice of one round: the keys stay in registers.
template <class Real>
class KeysInRegisters {
 public:
  static constexpr int kRows = kRowsInRegisters;

  __device__ __forceinline__ KeysInRegisters(const RankedRows<Real>& ranked, Slice slice)
      : rows_{slice.first + threadIdx.x, static_cast<int>(blockDim.x),
              static_cast<int>(slice.end - slice.first) - static_cast<int>(threadIdx.x)},
        eligible_(ranked.load(rows_, keys_)) {}

  template <class Body>
  __device__ __forceinline__ void sweep(Body body) const {
    body(rows_, keys_, eligible_);
  }

 private:
  SteppedRows rows_;
  typename RankedRows<Real>::Bits keys_[kRows];
  int eligible_;
};

// For a longer slice: each sweep reads the losses again, mostly from the cache.
template <class Real>
class KeysInMemory {
 public:
  static constexpr int kRows = 4;  // with eight the keys of float64 spill

  __device__ __forceinline__ KeysInMemory(const RankedRows<Real>& ranked, Slice slice)
      : ranked_(ranked), slice_(slice) {}

  template <class Body>
  __device__ __forceinline__ void sweep(Body body) const {
    const int64_t of_round = int64_t{kRows} * blockDim.x;
    const int thread = threadIdx.x;
#pragma unroll 1
    for (int64_t first = slice_.first; first < slice_.end; first += of_round) {
      const int left = static_cast<int>(Min{}(slice_.end - first, of_round));
      const SteppedRows rows{first + thread, static_cast<int>(blockDim.x), left - thread};
      typename RankedRows<Real>::Bits keys[kRows];
      const int eligible = ranked_.load(rows, keys);
      body(rows, keys, eligible);
    }
  }

 private:
  const RankedRows<Real>& ranked_;
  Slice slice_;
};

// --- the survey -----------------------------------------------------------------------------------------------------

template <class Bits>
__device__ __forceinline__ Candidates<Bits> candidates_of_warp(const Candidates<Bits>& of_lane) {
  return {reduce_lanes<kWarp>(of_lane.lowest, Min{}), reduce_lanes<kWarp>(of_lane.end, Max{}),
          reduce_lanes<kWarp>(of_lane.finite, Sum{}), reduce_lanes<kWarp>(of_lane.eligible, Sum{})};
}

// The candidates of all rows. Every thread must call this. What any thread of a block wrote to shared memory before the
// call, all its threads can read afterwards.
template <class Keys, class Bits>
__device__ __forceinline__ Candidates<Bits> survey(const Keys& rows_and_keys, RadixScratch<Bits>& scratch,
                                                   Cluster cluster) {
  const int lane = lane_of_thread();
  Candidates<Bits> found = Candidates<Bits>::none();
  rows_and_keys.sweep([&](const SteppedRows&, const auto& keys, int eligible) {
#pragma unroll
    for (int i = 0; i < Keys::kRows; ++i) {
      const Bits next = keys[i] + 1;  // 0 after kNoCandidate, the highest there is
      found.lowest = Min{}(found.lowest, keys[i]);
      found.end = Max{}(found.end, next);
      found.finite += next != 0;
    }
    found.eligible += eligible;
  });
  found = candidates_of_warp(found);
  if (lane == 0) scratch.of_warp[warp_of_thread()] = found;
  __syncthreads();  // each warp's are written before any are read
  found = candidates_of_warp(lane < warps_of_block() ? scratch.of_warp[lane] : Candidates<Bits>::none());
  if (cluster.blocks == 1) return found;
  if (threadIdx.x == 0) scratch.of_block = found;
  cluster.sync();  // each block's are written before any are read
  return candidates_of_warp(lane < cluster.blocks ? *cluster.shared_of(lane, &scratch.of_block)
                                                  : Candidates<Bits>::none());
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

// --- the k-th smallest key ------------------------------------------------------------------------------------------

// A sweep's counters, summed over all blocks. Every thread must call this when it has counted its rows.
template <class Bits>
__device__ __forceinline__ const uint32_t* add_up_counters(RadixScratch<Bits>& scratch, int sweep, Cluster cluster) {
  cluster.sync();  // every row is counted before any counter is read
  if (cluster.blocks == 1) return scratch.counters[sweep];
#pragma unroll 1  // unrolling it would need a division
  for (int i = threadIdx.x; i < kDigits; i += blockDim.x) {
    uint32_t of_blocks[kClusterBlocks], sum = 0;
#pragma unroll
    for (int block = 0; block < kClusterBlocks; ++block) {  // without a condition all loads are in flight together
      of_blocks[block] = cluster.shared_of(block < cluster.blocks ? block : 0, scratch.counters[sweep])[i];
    }
#pragma unroll
    for (int block = 0; block < kClusterBlocks; ++block) sum += block < cluster.blocks ? of_blocks[block] : 0;
    scratch.of_cluster[i] = sum;  // the last sweep's sums were read before the barrier above
  }
  __syncthreads();  // every counter is added up before any sum is read
  return scratch.of_cluster;
}

// The digit of the `remaining`-th smallest key that was counted. Every lane of a warp must call this.
__device__ __forceinline__ Digit digit_of_rank(const uint32_t* counters, uint32_t remaining) {
  constexpr int per_lane = kDigits / kWarp;
  const int lane = lane_of_thread();
  alignas(16) uint32_t counts[per_lane];
#pragma unroll
  for (int i = 0; i < per_lane; i += 4) {
    const uint4 four = *reinterpret_cast<const uint4*>(counters + lane * per_lane + i);
    memcpy(counts + i, &four, sizeof(four));
  }
  uint32_t total = 0;
#pragma unroll
  for (int i = 0; i < per_lane; ++i) total += counts[i];
  uint32_t up_to_here = total;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const uint32_t other = __shfl_up_sync(kWholeWarp, up_to_here, distance);
    if (lane >= distance) up_to_here += other;
  }
  const uint32_t first = static_cast<uint32_t>(lane * per_lane);
  Digit digit{first, up_to_here - total, counts[0]};
#pragma unroll
  for (int i = 1; i < per_lane; ++i) {
    if (digit.before + digit.count < remaining) digit = {first + i, digit.before + digit.count, counts[i]};
  }
  const int owner = __ffs(__ballot_sync(kWholeWarp, up_to_here >= remaining)) - 1;
  return {__shfl_sync(kWholeWarp, digit.value, owner), __shfl_sync(kWholeWarp, digit.before, owner),
          __shfl_sync(kWholeWarp, digit.count, owner)};
}

// The same for the block, found by one of its warps: if every warp searched, they would wait longer for one another's
// instructions than for the barrier. Every thread must call this.
__device__ __forceinline__ Digit find_digit(const uint32_t* counters, uint32_t remaining, Digit& found) {
  if (warp_of_thread() == 0) {
    const Digit digit = digit_of_rank(counters, remaining);
    if (lane_of_thread() == 0) found = digit;
  }
  __syncthreads();  // it is found before any thread reads it; the next one is written after the next sweep's barrier
  return found;
}

// Rows with a key below `key` are chosen, and the first `ties` of those that have it.
template <class Bits>
struct Threshold {
  Bits key;
  uint32_t ties;
  uint32_t ties_before;  // rows that have it in the slices before this block's; 0 if `ties` is 0
};

__device__ __forceinline__ int leading_zeros(uint32_t bits) { return __clz(static_cast<int>(bits)); }
__device__ __forceinline__ int leading_zeros(uint64_t bits) { return __clzll(static_cast<long long>(bits)); }

// The threshold of the k smallest keys, 0 < k < the number of candidates. Every thread must call this.
template <class Keys, class Bits>
__device__ __forceinline__ Threshold<Bits> find_threshold(const Keys& rows_and_keys, const Candidates<Bits>& all,
                                                          int64_t k, RadixScratch<Bits>& scratch, Cluster cluster) {
  // The k-th smallest key lies in [lowest, lowest + 2^(shift + 8)): its next digit is (key - lowest) >> shift.
  const Bits range = static_cast<Bits>(all.end - 1 - all.lowest);
  int shift = Max{}(static_cast<int>(sizeof(Bits) * 8) - leading_zeros(range) - kDigitBits, 0);
  Bits lowest = all.lowest;
  uint32_t remaining = static_cast<uint32_t>(k);
  for (int sweep = 0;; ++sweep) {
    uint32_t* const counters = scratch.counters[sweep];
    rows_and_keys.sweep([&](const SteppedRows&, const auto& keys, int) {
#pragma unroll
      for (int i = 0; i < Keys::kRows; ++i) {
        const Bits above = keys[i] - lowest;  // a lower key wraps round, past every digit
        // A GPU has an instruction for adding 1, which serves all lanes with the same counter at once.
        atomicAdd(&counters[Min{}(static_cast<Bits>(above >> shift), Bits{kNoDigit})], 1u);
      }
    });
    const Digit digit = find_digit(add_up_counters(scratch, sweep, cluster), remaining, scratch.digit);
    remaining -= digit.before;
    lowest += static_cast<Bits>(digit.value) << shift;
    if (digit.count == remaining) {  // all keys with this digit are chosen: no digit below decides
      return {static_cast<Bits>(lowest + (Bits{1} << shift)), 0, 0};  // no overflow, for there are higher keys
    }
    if (shift == 0) {
      Threshold<Bits> threshold{lowest, remaining, 0};
#pragma unroll 1
      for (int block = 0; block < cluster.rank; ++block) {
        threshold.ties_before += cluster.shared_of(block, counters)[digit.value];
      }
      return threshold;
    }
    shift = Max{}(shift - kDigitBits, 0);
  }
}

// --- the choice -----------------------------------------------------------------------------------------------------

// Gives the ties to the lowest rows, round by round: in each to the first row of every thread, then to the second of
// every thread ...
template <class Bits>
struct TieBreaker {
  const Threshold<Bits>& threshold;
  uint32_t (*of_warp)[kRowsInRegisters][kMaxWarps];  // shared: [2]
  uint32_t before = threshold.ties_before;
  int parity = 0;

  // Which of this thread's rows are among the first `ties`, a bit each. Every thread must call this.
  template <int count>
  __device__ __forceinline__ uint32_t take(const Bits (&keys)[count]) {
    const int lane = lane_of_thread(), warp = warp_of_thread();
    unsigned ties[count];
#pragma unroll
    for (int i = 0; i < count; ++i) {
      ties[i] = __ballot_sync(kWholeWarp, keys[i] == threshold.key);
      if (lane == 0) of_warp[parity][i][warp] = __popc(ties[i]);
    }
    // Each warp's count is written before any is read. The next call writes the other half, and a thread that writes
    // this half again has passed that call's barrier, before which all had read here.
    __syncthreads();
    uint32_t taken = 0;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const uint32_t of_lane = lane < warps_of_block() ? of_warp[parity][i][lane] : 0;
      const uint32_t in_earlier_warps = reduce_lanes<kWarp>(lane < warp ? of_lane : 0, Sum{});
      const uint32_t in_earlier_lanes = __popc(ties[i] & ((1u << lane) - 1));
      const bool is_taken = before + in_earlier_warps + in_earlier_lanes < threshold.ties;
      if (keys[i] == threshold.key && is_taken) taken |= 1u << i;
      before += reduce_lanes<kWarp>(of_lane, Sum{});
    }
    parity ^= 1;
    return taken;
  }
};

// Writes the choice; returns this thread's share of the sum. Every thread must call this.
template <class Real, class Keys, class Bits>
__device__ __forceinline__ double write_choice(const SelectionParams& params, const Keys& rows_and_keys,
                                               const Threshold<Bits>& threshold,
                                               uint32_t (*ties_of_warp)[kRowsInRegisters][kMaxWarps]) {
  TieBreaker<Bits> ties{threshold, ties_of_warp};
  double share = 0;
  rows_and_keys.sweep([&](const SteppedRows& rows, const auto& keys, int) {
    uint32_t chosen = 0;  // a bit for each row: truth values would use up a GPU's few predicate registers
#pragma unroll
    for (int i = 0; i < Keys::kRows; ++i) chosen |= keys[i] < threshold.key ? 1u << i : 0;
    if (threshold.ties > 0) chosen |= ties.take(keys);
    if (params.mean_of != nullptr) {
      Real values[Keys::kRows] = {};  // all in flight before the first is added
#pragma unroll
      for (int i = 0; i < Keys::kRows; ++i) {
        if (chosen >> i & 1) values[i] = value_of<Real>(params, rows.first + i * rows.step, keys[i]);
      }
#pragma unroll
      for (int i = 0; i < Keys::kRows; ++i) share += static_cast<double>(values[i]);
    }
    uint8_t* selected = params.selected + rows.first;
#pragma unroll
    for (int i = 0; i < Keys::kRows; ++i) {
      if (rows.holds(i)) selected[i * rows.step] = chosen >> i & 1;
    }
  });
  return share;
}

template <class Real, class Keys>
__device__ __forceinline__ void select_from(const SelectionParams& params, const RowsToKeep& to_keep,
                                            const Keys& rows_and_keys,
                                            RadixScratch<typename OrderBits<Real>::type>& scratch, Cluster cluster) {
  using Rows = RankedRows<Real>;
  using Bits = typename Rows::Bits;
  const Candidates<Bits> all = survey(rows_and_keys, scratch, cluster);
  const int64_t eligible = params.row_state == nullptr ? params.rows : int64_t{all.eligible};
  const int64_t k = to_keep.of(eligible, all.finite);
  Threshold<Bits> threshold{Rows::kNoCandidate, 0, 0};  // all candidates
  if (k == 0) threshold.key = 0;                        // none: no finite loss has key 0
  if (k > 0 && k < all.finite) threshold = find_threshold(rows_and_keys, all, k, scratch, cluster);
  const double share = write_choice<Real>(params, rows_and_keys, threshold, scratch.ties_of_warp);
  double sum = sum_of_block(params, share, scratch.sums);
  if (cluster.blocks > 1) {
    if (threadIdx.x == 0) *cluster.shared_of(0, &scratch.sums_of_blocks[cluster.rank]) = sum;
    cluster.sync();  // all sums have arrived; and no block reads another's memory any more: each may end
    sum = 0;
#pragma unroll 1
    for (int block = 0; cluster.rank == 0 && block < cluster.blocks; ++block) sum += scratch.sums_of_blocks[block];
  }
  if (cluster.rank == 0 && threadIdx.x == 0) write_numbers<Real>(params, k, eligible, all.finite, sum);
}

// Rows fewer than 2^32. One block, or the blocks of one cluster.
template <class Real>
__device__ __forceinline__ void select_by_radix(const SelectionParams& params,
                                                RadixScratch<typename OrderBits<Real>::type>& scratch) {
  const Cluster cluster = cluster_of_block();
  const Slice slice = slice_of_block(params.rows, cluster);
  constexpr int counters = sizeof(scratch.counters) / sizeof(scratch.counters[0][0]);
#pragma unroll 1
  for (int i = threadIdx.x; i < counters; i += blockDim.x) scratch.counters[0][i] = 0;
  const RowsToKeep to_keep(params);
  const RankedRows<Real> ranked(params, only_differing_rows(params, [&] {
                                  return any_differ_in_cluster(params, slice, &scratch.predictions_differ, cluster);
                                }));
  if (rows_of_slice(params.rows, cluster.blocks) <=
      int64_t{kRowsInRegisters} * blockDim.x) {  // in all blocks or in none
    select_from<Real>(params, to_keep, KeysInRegisters<Real>(ranked, slice), scratch, cluster);
  } else {
    select_from<Real>(params, to_keep, KeysInMemory<Real>(ranked, slice), scratch, cluster);
  }
}

template <class Real>
__global__ void __launch_bounds__(kRadixThreads, 1) selection_by_radix(const __grid_constant__ SelectionParams params) {
  __shared__ RadixScratch<typename OrderBits<Real>::type> scratch;
  wait_for_previous_kernel();
  select_by_radix<Real>(params, scratch);
}

}  // namespace jocor_fast::cuda
