// The three steps of joint_loss.h on a CUDA device: from the type that the parameters name to the launch for it.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "../joint_loss.h"
#include "launches.h"

namespace jocor_fast::cuda {
namespace {

// Calls body<the logit type>().
template <class Body>
cudaError_t with_type(LogitType type, Body body) {
  switch (type) {
    case LogitType::float16:
      return body.template operator()<__half>();
    case LogitType::bfloat16:
      return body.template operator()<__nv_bfloat16>();
    case LogitType::float64:
      return body.template operator()<double>();
    case LogitType::float32:
      break;
  }
  return body.template operator()<float>();
}

cudaError_t select(const SelectionParams& params, cudaStream_t stream, After after) {
  return params.is_double ? launch_selection<double>(params, stream, after)
                          : launch_selection<float>(params, stream, after);
}

// The text of an error, null for none. Also clears the error in the runtime, where the next check would find it.
const char* text_of(cudaError_t error) {
  if (error == cudaSuccess) return nullptr;
  cudaGetLastError();
  if (error == cudaErrorNoKernelImageForDevice) {
    return "this build has kernels for other GPUs (`jocor-fast info` says for which); build it again with "
           "TORCH_CUDA_ARCH_LIST=M.N, this one's compute capability";
  }
  return cudaGetErrorString(error);
}

}  // namespace

const char* row_losses(const RowParams& params, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  return text_of(with_type(params.pair.type, [&]<class Logit>() { return launch_row_losses<Logit>(params, on); }));
}

const char* select_small_loss(const SelectionParams& params, void* stream) {
  return text_of(select(params, static_cast<cudaStream_t>(stream), After::everything));
}

const char* row_losses_and_selection(const RowParams& rows, const SelectionParams& selection, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  return text_of(with_type(rows.pair.type, [&]<class Logit>() {
    if (fits_single_block<Logit>(rows.pair)) return launch_rows_and_selection<Logit>(rows, selection, on);
    const cudaError_t error = launch_row_losses<Logit>(rows, on);
    return error == cudaSuccess ? select(selection, on, After::linked) : error;
  }));
}

const char* row_gradients(const GradientParams& params, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  return text_of(with_type(params.pair.type, [&]<class Logit>() { return launch_row_gradients<Logit>(params, on); }));
}

const char* robust_losses(const RobustRowParams& params, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  return text_of(with_type(params.logits.type, [&]<class Logit>() { return launch_robust_losses<Logit>(params, on); }));
}

const char* robust_losses_and_selection(const RobustRowParams& rows, const SelectionParams& selection, void* stream) {
  const char* error = robust_losses(rows, stream);
  return error != nullptr ? error : text_of(select(selection, static_cast<cudaStream_t>(stream), After::linked));
}

const char* robust_gradients(const RobustGradientParams& params, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  return text_of(
      with_type(params.logits.type, [&]<class Logit>() { return launch_robust_gradients<Logit>(params, on); }));
}

}  // namespace jocor_fast::cuda
