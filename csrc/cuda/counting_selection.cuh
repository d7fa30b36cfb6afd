// The selection of a small batch, in one block: every row counts the keys that come before its own.
#pragma once

#include "launches.h"
#include "row_mapping.h"
#include "selection.cuh"

namespace jocor_fast::cuda {

template <class Bits>
constexpr int kKeysAtOnce = 16 / sizeof(Bits);  // keys that a thread reads in one instruction

template <class Bits>
struct CountingScratch {
  alignas(16) Bits keys[kCountingRows];
  double sums[kMaxWarps];
  static_assert(kCountingRows % kKeysAtOnce<Bits> == 0);
};

// Four threads count for a row: with more, all that precedes and follows the comparisons would take longer.
inline int threads_of_counting(int64_t rows) { return threads_in_whole_warps(4 * rows, kCountingThreads); }

// The logarithm of how many threads share the counting of one row: the largest power of two, up to a warp, that the
// block has for each row. A logarithm, since shifting is faster than dividing.
__device__ __forceinline__ int log_lanes_of_counting(int rows) {
  int log_lanes = 5;
  while (log_lanes > 0 && (rows << log_lanes) > static_cast<int>(blockDim.x)) --log_lanes;
  return log_lanes;
}

// kKeysAtOnce keys, from row `first` on.
template <class Bits>
struct SomeKeys {
  Bits of[kKeysAtOnce<Bits>];

  __device__ __forceinline__ SomeKeys(const Bits* keys, int first) {
    const uint4 raw = *reinterpret_cast<const uint4*>(keys + first);
    memcpy(of, &raw, sizeof(raw));
  }
};

// How many keys come before that of `row`: those below it, and those that equal it in lower rows. Each of `lanes`
// threads, a power of two, counts a share of them, with one comparison a key. The keys are read in groups of
// kKeysAtOnce. In groups before the row's own an equal key comes before it too, which `< key + 1` counts; in its own
// group and later ones `< key` does not count it, and one thread adds the equal keys of lower rows in its own group.
// For a row that cannot be chosen or does not exist, key is kNoCandidate, key + 1 is 0, and the result means nothing:
// the caller does not use it.
template <class Bits>
__device__ __forceinline__ int keys_before(const Bits* keys, int rows, Bits key, int row, int lane, int lanes) {
  constexpr int at_once = kKeysAtOnce<Bits>;
  int before = 0;
#pragma unroll 1  // unrolling it would need a division
  for (int first = lane * at_once; first < rows; first += lanes * at_once) {
    const SomeKeys<Bits> others(keys, first);
    const Bits limit = first + at_once <= row ? key + 1 : key;
#pragma unroll
    for (int i = 0; i < at_once; ++i) before += others.of[i] < limit;
  }
  const int block = row / at_once;
  if (row >= rows || (block & (lanes - 1)) != lane) return before;
  const SomeKeys<Bits> own(keys, block * at_once);
#pragma unroll
  for (int i = 0; i < at_once; ++i) before += own.of[i] == key && i < row % at_once;
  return before;
}

// At most kCountingRows rows, with every thread of the block.
template <class Real>
__device__ __forceinline__ void select_by_counting(const SelectionParams& params,
                                                   CountingScratch<typename OrderBits<Real>::type>& scratch) {
  using Rows = RankedRows<Real>;
  using Bits = typename Rows::Bits;
  constexpr int at_once = kKeysAtOnce<Bits>;
  const RowsToKeep to_keep(params);
  const Rows ranked(params, only_differing_rows(params, [&] { return any_differ_in(params, {0, params.rows}); }));
  const int rows = static_cast<int>(params.rows), threads = blockDim.x;
  const int whole = (rows + at_once - 1) / at_once * at_once;  // the keys past the last row's come before none
  int64_t eligible = ranked.all_are_eligible() ? rows : 0, finite = 0;
  for (int first = 0; first < whole; first += threads) {
    const int row = first + threadIdx.x;
    Bits key[1];
    const int is_eligible = ranked.load({row, threads, rows - row}, key);
    if (row < whole) scratch.keys[row] = key[0];
    if (!ranked.all_are_eligible()) eligible += __syncthreads_count(is_eligible);
    finite += __syncthreads_count(key[0] != Rows::kNoCandidate);  // and all keys are written before any is read
  }
  const int64_t k = to_keep.of(eligible, finite);

  const int log_lanes = log_lanes_of_counting(rows), lanes = 1 << log_lanes, lane = threadIdx.x & (lanes - 1);
  double share = 0;
  for (int first = 0; first < rows; first += threads >> log_lanes) {
    const int row = first + (threadIdx.x >> log_lanes);
    const Bits key = row < rows ? scratch.keys[row] : Rows::kNoCandidate;
    int before = keys_before(scratch.keys, rows, key, row, lane, lanes);
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
      before += __shfl_xor_sync(kWholeWarp, before, distance);
    }
    if (lane != 0 || row >= rows) continue;
    const bool chosen = key != Rows::kNoCandidate && before < k;
    params.selected[row] = chosen;
    if (chosen && params.mean_of != nullptr) share += static_cast<double>(value_of<Real>(params, row, key));
  }
  const double sum = sum_of_block(params, share, scratch.sums);
  if (threadIdx.x == 0) write_numbers<Real>(params, k, eligible, finite, sum);
}

template <class Real>
__global__ void __launch_bounds__(kCountingThreads, 1)
    selection_by_counting(const __grid_constant__ SelectionParams params) {
  __shared__ CountingScratch<typename OrderBits<Real>::type> scratch;
  wait_for_previous_kernel();
  select_by_counting<Real>(params, scratch);
}

}  // namespace jocor_fast::cuda
