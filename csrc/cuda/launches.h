// One launch function for each step and type. joint_loss.cu chooses the type; the templates are compiled in one .cu
// file for each type, in parallel.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "../joint_loss.h"
#include "linked_launch.cuh"

namespace jocor_fast::cuda {

inline int64_t divide_up(int64_t count, int64_t by) { return (count + by - 1) / by; }

// Threads of a block that has work for `wanted` of them, at most `most`: warps without work would still take issue
// slots.
inline int threads_in_whole_warps(int64_t wanted, int most) {
  return static_cast<int>(std::min<int64_t>(divide_up(wanted, 32) * 32, most));
}

template <class Logit>
cudaError_t launch_row_losses(const RowParams& params, cudaStream_t stream);

// Whether one block does both steps; and the launch of that block.
template <class Logit>
bool fits_single_block(const LogitPair& pair);
template <class Logit>
cudaError_t launch_rows_and_selection(const RowParams& rows, const SelectionParams& selection, cudaStream_t stream);

template <class Logit>
cudaError_t launch_row_gradients(const GradientParams& params, cudaStream_t stream);

template <class Logit>
cudaError_t launch_robust_losses(const RobustRowParams& params, cudaStream_t stream);

template <class Logit>
cudaError_t launch_robust_gradients(const RobustGradientParams& params, cudaStream_t stream);

template <class Real>
cudaError_t launch_selection(const SelectionParams& params, cudaStream_t stream, After after);

}  // namespace jocor_fast::cuda
