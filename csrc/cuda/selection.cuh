// Step 2 in one block: the k smallest finite losses, ties to the lower row; exactly numpy.argsort(kind="stable")[:k].
//
// Small batches: every row counts the keys that come before its own. Larger ones: a radix search for the k-th smallest
// key, eight bits a sweep, then one sweep that writes the choice. No thread's timing can change a result: the only
// atomics are integer additions.
#pragma once

#include "../ranked_rows.h"
#include "linked_launch.cuh"
#include "reductions.cuh"
#include "row_mapping.h"

namespace jocor_fast::cuda {

constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kNoDigit = kDigits;  // of a row that is not counted
constexpr int kRowsAtOnce = 4;     // whose loads are under way together in a sweep

// Keys of batches up to 32 KB are read from memory once.
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
  uint32_t histograms[sizeof(Bits)][kDigits];  // one a sweep, so that clearing one needs no barrier of its own
  int64_t counts[2 * kMaxWarps];
  uint32_t ties_of_warp[2][kMaxWarps];
  double sums[kMaxWarps];
};

// Every thread must call this.
__device__ __forceinline__ bool only_differing_rows(const SelectionParams& params) {
  if (params.disagreement == Disagreement::ignored || params.row_state == nullptr) return false;
  if (params.disagreement == Disagreement::required) return true;
  int found = 0;
  for (int64_t row = threadIdx.x; row < params.rows; row += blockDim.x) {
    found |= params.row_state[row] == kEligibleAndPredictionsDiffer;
  }
  return __syncthreads_or(found) != 0;
}

template <class Real>
__device__ __forceinline__ double value_of(const SelectionParams& params, int64_t row) {
  return params.mean_of != nullptr ? static_cast<double>(static_cast<const Real*>(params.mean_of)[row]) : 0.0;
}

// `sum`: each thread's share, of the rows that it chose.
template <class Real>
__device__ __forceinline__ void write_results(const SelectionParams& params, int64_t k, int64_t eligible,
                                              int64_t finite, double sum, double* scratch) {
  double total[1] = {sum};
  reduce_block(total, 0.0, Sum{}, scratch);
  if (threadIdx.x == 0) write_numbers<Real>(params, k, eligible, finite, total[0]);
}

// --- by counting ----------------------------------------------------------------------------------------------------

// How many threads share the counting of one row: the largest power of two that the block has for each row.
__device__ __forceinline__ int lanes_of_counting(int64_t rows) {
  int lanes = kWarp;
  while (lanes > 1 && lanes * rows > blockDim.x) lanes /= 2;
  return lanes;
}

// At most kCountingRows rows, with every thread of the block.
template <class Real>
__device__ __forceinline__ void select_by_counting(const SelectionParams& params,
                                                   CountingScratch<typename OrderBits<Real>::type>& scratch) {
  using Rows = RankedRows<Real>;
  using Bits = typename Rows::Bits;
  const Rows ranked(params, only_differing_rows(params));
  const int rows = static_cast<int>(params.rows), threads = blockDim.x;
  int64_t eligible = 0, finite = 0;
  for (int first = 0; first < rows; first += threads) {
    const int row = first + threadIdx.x;
    const bool is_eligible = row < rows && ranked.eligible(row);
    const bool is_candidate = is_eligible && ranked.finite(row);
    if (row < rows) scratch.keys[row] = is_candidate ? ranked.key(row) : Rows::kNoCandidate;
    eligible += __syncthreads_count(is_eligible);
    finite += __syncthreads_count(is_candidate);  // and all keys are written before any is read
  }
  const int64_t k = rows_to_keep(params, eligible, finite);

  const int lanes = lanes_of_counting(rows), lane = threadIdx.x % lanes;
  double sum = 0;
  for (int first = 0; first < rows; first += threads / lanes) {
    const int row = first + threadIdx.x / lanes;
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
    if (chosen) sum += value_of<Real>(params, row);
  }
  write_results<Real>(params, k, eligible, finite, sum, scratch.sums);
}

// --- by radix -------------------------------------------------------------------------------------------------------

// Lanes with the same digit add once: losses share their leading digits, and 32 additions to one counter take turns.
__device__ __forceinline__ void count_digit(uint32_t* histogram, int digit) {
  if (!__any_sync(kWholeWarp, digit != kNoDigit)) return;
  const unsigned same = __match_any_sync(kWholeWarp, digit);
  if (digit != kNoDigit && lane_of_thread() == __ffs(same) - 1) atomicAdd(&histogram[digit], __popc(same));
}

struct Digit {
  int value;
  uint32_t before;  // counted with a smaller digit
  uint32_t count;   // counted with this one
};

// The digit of the `remaining`-th smallest counted key. Each warp finds it for itself, which saves a barrier.
__device__ __forceinline__ Digit find_digit(const uint32_t* histogram, uint32_t remaining) {
  constexpr int per_lane = kDigits / kWarp;
  const int lane = lane_of_thread();
  uint32_t counts[per_lane], total = 0;
#pragma unroll
  for (int i = 0; i < per_lane; ++i) total += counts[i] = histogram[lane * per_lane + i];
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

// Calls body(row, key) with every thread for kRowsAtOnce rows at a time; past the last row the key is kNoCandidate.
template <class Real, class KeyOf, class Body>
__device__ __forceinline__ void sweep(int64_t rows, KeyOf key_of, Body body) {
  using Rows = RankedRows<Real>;
  const int64_t threads = blockDim.x;
  for (int64_t first = threadIdx.x; first - threadIdx.x < rows; first += kRowsAtOnce * threads) {
    typename Rows::Bits keys[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const int64_t row = first + i * threads;
      keys[i] = row < rows ? key_of(row) : Rows::kNoCandidate;
    }
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) body(first + i * threads, keys[i]);
  }
}

// Rows with a key below `key` are chosen, and the first `ties` of those that have it.
template <class Bits>
struct Threshold {
  Bits key;
  uint32_t ties;
  bool all_ties;  // they are all that have it, so that their order does not matter
};

// Writes the choice; returns this thread's share of the sum. Every thread must call this.
template <class Real, class KeyOf, class Bits>
__device__ __forceinline__ double write_choice(const SelectionParams& params, KeyOf key_of, Threshold<Bits> threshold,
                                               uint32_t (*ties_of_warp)[kMaxWarps]) {
  const int lane = lane_of_thread(), warp = warp_of_thread(), warps = warps_of_block();
  uint32_t ties_before = 0;  // in the chunks of rows that were swept
  int parity = 0;
  double sum = 0;
  sweep<Real>(params.rows, key_of, [&](int64_t row, Bits key) {
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
    if (row >= params.rows) return;
    chosen = chosen && key != RankedRows<Real>::kNoCandidate;
    if (chosen) sum += value_of<Real>(params, row);
    params.selected[row] = chosen;
  });
  return sum;
}

// Rows fewer than 2^32. One block.
template <class Real>
__device__ __forceinline__ void select_by_radix(const SelectionParams& params,
                                                RadixScratch<typename OrderBits<Real>::type>& scratch) {
  using Rows = RankedRows<Real>;
  using Bits = typename Rows::Bits;
  for (int i = threadIdx.x; i < int(sizeof(Bits)) * kDigits; i += blockDim.x) scratch.histograms[0][i] = 0;
  const Rows ranked(params, only_differing_rows(params));
  __syncthreads();  // the histograms are clear before any row is counted

  // First sweep: how many rows are eligible, how many finite, and the leading digit, which needs no k.
  const bool cached = params.rows <= kCachedKeys<Bits>;
  int64_t counted[2] = {};  // eligible, finite
  int shift = sizeof(Bits) * 8 - kDigitBits;
  const auto key_in_memory = [&](int64_t row) {
    return ranked.eligible(row) && ranked.finite(row) ? ranked.key(row) : Rows::kNoCandidate;
  };
  sweep<Real>(params.rows, key_in_memory, [&](int64_t row, Bits key) {
    if (row < params.rows) {
      counted[0] += ranked.eligible(row);
      if (cached) scratch.keys[row] = key;
    }
    const bool candidate = key != Rows::kNoCandidate;
    counted[1] += candidate;
    count_digit(scratch.histograms[0], candidate ? static_cast<int>(key >> shift) : kNoDigit);
  });
  reduce_block(counted, int64_t{0}, Sum{}, scratch.counts);  // its barriers also end the counting, and publish the keys
  const int64_t eligible = counted[0], finite = counted[1];
  const int64_t k = rows_to_keep(params, eligible, finite);
  const auto key_of = [&](int64_t row) { return cached ? scratch.keys[row] : key_in_memory(row); };

  Threshold<Bits> threshold{Rows::kNoCandidate, 0, true};  // all candidates
  if (k == 0) threshold.key = 0;                           // none: no finite loss has key 0
  if (k > 0 && k < finite) {
    Bits prefix = 0, known = 0;  // the digits of the k-th smallest key that are found, and where they stand
    uint32_t remaining = static_cast<uint32_t>(k);
    for (int digit_index = 0;; ++digit_index) {
      const Digit digit = find_digit(scratch.histograms[digit_index], remaining);
      remaining -= digit.before;
      prefix |= static_cast<Bits>(digit.value) << shift;
      known |= static_cast<Bits>(kDigits - 1) << shift;
      const bool all = digit.count == remaining;  // of the keys with this prefix, so that no digit below decides
      if (all || shift == 0) {
        threshold = {static_cast<Bits>(prefix | (all ? ~known : Bits{0})), remaining, all};
        break;
      }
      shift -= kDigitBits;
      sweep<Real>(params.rows, key_of, [&](int64_t, Bits key) {
        const bool counts = key != Rows::kNoCandidate && (key & known) == prefix;
        count_digit(scratch.histograms[digit_index + 1],
                    counts ? static_cast<int>(key >> shift) & (kDigits - 1) : kNoDigit);
      });
      __syncthreads();  // every row is counted before the histogram is read
    }
  }
  const double sum = write_choice<Real>(params, key_of, threshold, scratch.ties_of_warp);
  write_results<Real>(params, k, eligible, finite, sum, scratch.sums);
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
