// One launch function a step and type. joint_loss.cu chooses the type; the templates are compiled in a .cu file for
// each type, side by side.
#pragma once

#include <cuda_runtime.h>

#include "../joint_loss.h"
#include "linked_launch.cuh"

namespace jocor_fast::cuda {

template <class Logit>
cudaError_t launch_row_losses(const RowParams& params, cudaStream_t stream);

// Whether one block does both steps, and doing so.
template <class Logit>
bool fits_single_block(const RowParams& rows, const SelectionParams& selection);
template <class Logit>
cudaError_t launch_rows_and_selection(const RowParams& rows, const SelectionParams& selection, cudaStream_t stream);

template <class Logit>
cudaError_t launch_row_gradients(const GradientParams& params, cudaStream_t stream);

template <class Real>
cudaError_t launch_selection(const SelectionParams& params, cudaStream_t stream, After after);

}  // namespace jocor_fast::cuda
