// The selection of a larger batch: a radix search for the k-th smallest key, eight bits a sweep, then one sweep that
// writes the choice; in one block, or in a cluster whose blocks take a slice of the rows each.
#pragma once

#include <algorithm>

#include "cluster.cuh"
#include "launches.h"
#include "row_mapping.h"
#include "selection.cuh"

namespace jocor_fast::cuda {

constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kNoDigit = kDigits;  // of a row that is not counted
template <class Bits>
constexpr int kLeadingShift = sizeof(Bits) * 8 - kDigitBits;
// Rows of a thread whose loads are under way together and whose digits are counted together. Eight have more truth
// values than a thread has predicates.
constexpr int kRowsAtOnce = 4;

// Counters of a sweep: keys by their digit; in the first one also two kinds of rows.
constexpr int kEligibleRows = kDigits, kFiniteRows = kDigits + 1, kCounters = kDigits + 2;

// Keys of a block up to 32 KB are read from memory once.
template <class Bits>
constexpr int kCachedKeys = 32768 / sizeof(Bits);

// Threads of each of `blocks` that share the rows: one for kRowsAtOnce rows, for what each does once takes longer than
// its share of a small batch; but one for every counter.
inline int threads_of_radix(int64_t rows, int blocks) {
  const int64_t of_rows = divide_up(rows, int64_t{blocks} * kRowsAtOnce);
  return threads_in_whole_warps(std::max<int64_t>(of_rows, kCounters), kRadixThreads);
}

struct Digit {
  int value;
  uint32_t before;  // counted with a smaller digit
  uint32_t count;   // counted with this one
};

template <class Bits>
struct RadixScratch {
  Bits keys[kCachedKeys<Bits>];
  uint32_t counters[sizeof(Bits)][kCounters];  // one line a sweep, so that clearing one needs no barrier of its own
  uint32_t of_cluster[kCounters];              // a line's sums over the blocks
  Digit digit;                                 // that a sweep has found
  uint32_t ties_of_warp[2][kMaxWarps];
  int predictions_differ;
  double sums[kMaxWarps];
  double sums_of_blocks[kClusterBlocks];  // of the cluster's first block: what each has added up
};

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

// --- sweeps ---------------------------------------------------------------------------------------------------------

// Calls body(rows, keys) with every thread, for kRowsAtOnce rows after load(rows, keys). A row that does not exist has
// the key kNoCandidate. Rows are counted in 32 bits from the round's first on: a GPU computes 64 in twice the
// instructions or more, and the instructions of one block are what a selection waits for.
template <class Real, class Load, class Body>
__device__ __forceinline__ void sweep(Slice slice, Load load, Body body) {
  const int threads = blockDim.x, thread = threadIdx.x;
#pragma unroll 1
  for (int64_t first = slice.first; first < slice.end; first += kRowsAtOnce * threads) {
    const int round = static_cast<int>(Min{}(slice.end - first, int64_t{kRowsAtOnce * threads}));
    const SteppedRows rows{first + thread, threads, round - thread};
    typename RankedRows<Real>::Bits keys[kRowsAtOnce];
    load(rows, keys);
    body(rows, keys);
  }
}

// Where the counter of a digit stands: those of the digits that one lane adds up in digit_of_rank lie a bank apart from
// its neighbours', for 32 lanes that read eight words in a row each would wait eight times for one another.
__device__ __forceinline__ int slot_of(int digit) {
  constexpr unsigned per_lane = kDigits / kWarp;  // unsigned, for the division of a negative number is no shift
  return static_cast<int>(digit % per_lane * kWarp + digit / per_lane);
}

// Counts the digits of each lane's keys, where they are not kNoDigit. Losses share their leading digits, and 32
// additions to one counter take turns: so all that equal the first one are added at once, then all that equal the first
// that is left.
__device__ __forceinline__ void count_digits(uint32_t* counters, int (&digits)[kRowsAtOnce]) {
#pragma unroll 1
  for (int twice = 0; twice < 2; ++twice) {
    int of_lane = kNoDigit;
#pragma unroll
    for (int i = kRowsAtOnce - 1; i >= 0; --i) of_lane = digits[i] != kNoDigit ? digits[i] : of_lane;
    const unsigned left = __ballot_sync(kWholeWarp, of_lane != kNoDigit);
    if (left == 0) return;
    const int first = __ffs(left) - 1;
    const int shared = __shfl_sync(kWholeWarp, of_lane, first);
    int same = 0;
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      same += __popc(__ballot_sync(kWholeWarp, digits[i] == shared));
      if (digits[i] == shared) digits[i] = kNoDigit;
    }
    if (lane_of_thread() == first) atomicAdd(&counters[slot_of(shared)], static_cast<uint32_t>(same));
  }
#pragma unroll
  for (int i = 0; i < kRowsAtOnce; ++i) {
    if (digits[i] != kNoDigit) atomicAdd(&counters[slot_of(digits[i])], 1u);
  }
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

// --- the k-th smallest key ------------------------------------------------------------------------------------------

// The digit of the `remaining`-th smallest counted key, by a whole warp.
__device__ __forceinline__ Digit digit_of_rank(const uint32_t* counters, uint32_t remaining) {
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

// The same for the block, by one of its warps: were each to find it, they would wait longer for one another's
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
  uint32_t ties_before;  // of the rows that have it, in the slices before this block's; 0 where there are no `ties`
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
    const Digit digit = find_digit(counters, remaining, scratch.digit);
    remaining -= digit.before;
    prefix |= static_cast<Bits>(digit.value) << shift;
    known |= static_cast<Bits>(kDigits - 1) << shift;
    if (digit.count == remaining) {  // all keys with this prefix are chosen: no digit below decides
      // k is less than the finite rows, so that there are higher keys and the addition does not overflow.
      return {static_cast<Bits>((prefix | static_cast<Bits>(~known)) + 1), 0, 0};
    }
    if (shift == 0) {
      Threshold<Bits> threshold{prefix, remaining, 0};
#pragma unroll 1
      for (int block = 0; block < cluster.rank; ++block) {
        threshold.ties_before += cluster.shared_of(block, scratch.counters[sweeps - 1])[slot_of(digit.value)];
      }
      return threshold;
    }
    shift -= kDigitBits;
    sweep<Real>(slice, load, [&](const SteppedRows&, const auto& keys) {
      int digits[kRowsAtOnce];
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        const int digit = static_cast<int>(keys[i] >> shift) & (kDigits - 1);
        digits[i] = (keys[i] & known) == prefix ? digit : kNoDigit;
      }
      count_digits(scratch.counters[sweeps], digits);
    });
    counters = add_up_counters(scratch, sweeps, cluster);
  }
}

// --- the choice -----------------------------------------------------------------------------------------------------

// Hands out the ties of a round, a row of every thread after the other.
template <class Bits>
struct TieBreaker {
  const Threshold<Bits>& threshold;
  uint32_t (*of_warp)[kMaxWarps];  // shared: [2]
  uint32_t before = threshold.ties_before;
  int parity = 0;

  // Whether this thread's row is one of the first `ties`. Every thread must call this.
  __device__ __forceinline__ bool take(bool tie) {
    const int lane = lane_of_thread(), warp = warp_of_thread();
    const unsigned ties = __ballot_sync(kWholeWarp, tie);
    if (lane == 0) of_warp[parity][warp] = __popc(ties);
    // Each warp's count is written before any is read. The next call writes the other half, and whoever writes this
    // half again has passed that call's barrier, before which all had read here.
    __syncthreads();
    const uint32_t of_lane = lane < warps_of_block() ? of_warp[parity][lane] : 0;
    const uint32_t in_earlier_warps = reduce_lanes<kWarp>(lane < warp ? of_lane : 0, Sum{});
    const uint32_t in_earlier_lanes = __popc(ties & ((1u << lane) - 1));
    const bool taken = tie && before + in_earlier_warps + in_earlier_lanes < threshold.ties;
    before += reduce_lanes<kWarp>(of_lane, Sum{});
    parity ^= 1;
    return taken;
  }
};

// Writes the choice; returns this thread's share of the sum. Every thread must call this.
template <class Real, class Load, class Bits>
__device__ __forceinline__ double write_choice(const SelectionParams& params, Slice slice, Load load,
                                               Threshold<Bits> threshold, uint32_t (*ties_of_warp)[kMaxWarps]) {
  TieBreaker<Bits> ties{threshold, ties_of_warp};
  double share = 0;
  sweep<Real>(slice, load, [&](const SteppedRows& rows, const auto& keys) {
    bool chosen[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) chosen[i] = keys[i] < threshold.key;
    if (threshold.ties > 0) {
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) chosen[i] |= ties.take(keys[i] == threshold.key);
    }
    if (params.mean_of != nullptr) {
      Real values[kRowsAtOnce] = {};  // all under way before the first is added
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        if (chosen[i]) values[i] = value_of<Real>(params, rows.first + i * rows.step);
      }
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) share += static_cast<double>(values[i]);
    }
    uint8_t* selected = params.selected + rows.first;
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      if (rows.holds(i)) selected[i * rows.step] = chosen[i];
    }
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

  // First sweep: how many rows are eligible, how many finite, and the leading digit, which needs no k. Rows that cannot
  // be chosen are counted with the others, here and below: their key is the highest, so that they come after the k-th,
  // of fewer than all finite rows, and where they share a digit with it the search goes on.
  const bool cached = slice.end - slice.first <= kCachedKeys<Bits>;
  uint32_t eligible_of_thread = 0, finite_of_thread = 0;
  const auto from_memory = [&](const SteppedRows& rows, auto& keys) { eligible_of_thread += ranked.load(rows, keys); };
  sweep<Real>(slice, from_memory, [&](const SteppedRows& rows, const auto& keys) {
    int digits[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      if (cached && rows.holds(i)) scratch.keys[int(rows.first - slice.first) + i * rows.step] = keys[i];
      finite_of_thread += keys[i] != Rows::kNoCandidate;
      digits[i] = static_cast<int>(keys[i] >> kLeadingShift<Bits>);
    }
    count_digits(scratch.counters[0], digits);
  });
  if (!ranked.all_are_eligible()) add_to_counter(&scratch.counters[0][kEligibleRows], eligible_of_thread);
  add_to_counter(&scratch.counters[0][kFiniteRows], finite_of_thread);
  const uint32_t* counters = add_up_counters(scratch, 0, cluster);
  const int64_t eligible = ranked.all_are_eligible() ? params.rows : int64_t{counters[kEligibleRows]};
  const int64_t finite = counters[kFiniteRows];
  const int64_t k = to_keep.of(eligible, finite);
  const auto load = [&](const SteppedRows& rows, auto& keys) {
    if (!cached) {
      ranked.load(rows, keys);
      return;
    }
    const Bits* next = scratch.keys + int(rows.first - slice.first);
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i, next += rows.step) keys[i] = rows.holds(i) ? *next : Rows::kNoCandidate;
  };

  Threshold<Bits> threshold{Rows::kNoCandidate, 0, 0};  // all candidates
  if (k == 0) threshold.key = 0;                        // none: no finite loss has key 0
  if (k > 0 && k < finite) threshold = find_threshold<Real>(slice, load, k, counters, scratch, cluster);
  const double share = write_choice<Real>(params, slice, load, threshold, scratch.ties_of_warp);
  double sum = sum_of_block(params, share, scratch.sums);
  if (cluster.blocks > 1) {
    if (threadIdx.x == 0) *cluster.shared_of(0, &scratch.sums_of_blocks[cluster.rank]) = sum;
    cluster.sync();  // all sums have arrived; and no block reads another's memory any more, so that each may end
    sum = 0;
#pragma unroll 1
    for (int block = 0; cluster.rank == 0 && block < cluster.blocks; ++block) sum += scratch.sums_of_blocks[block];
  }
  if (cluster.rank == 0 && threadIdx.x == 0) write_numbers<Real>(params, k, eligible, finite, sum);
}

template <class Real>
__global__ void __launch_bounds__(kRadixThreads, 1) selection_by_radix(const __grid_constant__ SelectionParams params) {
  __shared__ RadixScratch<typename OrderBits<Real>::type> scratch;
  wait_for_previous_kernel();
  select_by_radix<Real>(params, scratch);
}

}  // namespace jocor_fast::cuda
