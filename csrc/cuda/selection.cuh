// Step 2: the k smallest finite losses, ties to the lower row; exactly numpy.argsort(kind="stable")[:k]. Small batches
// are selected by counting (counting_selection.cuh), larger ones by radix (radix_selection.cuh); here is what both
// share. No thread's timing can change a result: the only atomics are integer additions.
#pragma once

#include "../ranked_rows.h"
#include "reductions.cuh"

namespace jocor_fast::cuda {

// The rows that a block reads.
struct Slice {
  int64_t first, end;
};

// Whether only rows whose predictions differ are eligible; `any_differ()` finds out whether there are any.
template <class AnyDiffer>
__device__ __forceinline__ bool only_differing_rows(const SelectionParams& params, AnyDiffer any_differ) {
  if (params.disagreement == Disagreement::ignored || params.row_state == nullptr) return false;
  return params.disagreement == Disagreement::required || any_differ();
}

// Whether the predictions differ in a row of this slice. Every thread must call this.
__device__ __forceinline__ bool any_differ_in(const SelectionParams& params, Slice slice) {
  int found = 0;
#pragma unroll 1
  for (int64_t row = slice.first + threadIdx.x; row < slice.end; row += blockDim.x) {
    found |= params.row_state[row] == kEligibleAndPredictionsDiffer;
  }
  return __syncthreads_or(found) != 0;
}

// What a chosen row adds to the sum whose mean is wanted: mostly its loss, which its key still holds.
template <class Real>
__device__ __forceinline__ Real value_of(const SelectionParams& params, int64_t row,
                                         typename OrderBits<Real>::type key) {
  return params.mean_of == params.losses ? loss_of_key<Real>(key) : static_cast<const Real*>(params.mean_of)[row];
}

// The sum over the block of each thread's share, for thread 0; without a barrier where no mean is wanted. Every thread
// must call this; `scratch` is shared: kMaxWarps.
__device__ __forceinline__ double sum_of_block(const SelectionParams& params, double share, double* scratch) {
  if (params.mean_of == nullptr) return 0;
  const int lane = lane_of_thread(), warp = warp_of_thread();
  const double of_warp = reduce_lanes<kWarp>(share, Sum{});
  if (lane == 0) scratch[warp] = of_warp;
  __syncthreads();  // each warp's sum is written before any is read
  return warp == 0 ? reduce_lanes<kWarp>(lane < warps_of_block() ? scratch[lane] : 0.0, Sum{}) : 0;
}

}  // namespace jocor_fast::cuda
