// Launching a kernel, alone or linked to the one before it: a linked kernel's blocks may start while that one still
// runs (programmatic dependent launch, compute capability 9.0), and wait inside for what it has written.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>

namespace jocor_fast::cuda {

// In the first kernel of a pair: the second may be scheduled. Early is safe, for it waits for the whole of this one.
__device__ __forceinline__ void allow_next_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// In the second, before it touches memory: the first has ended and its writes are visible.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// Whether a kernel's code, as loaded on the current device, holds the wait above. The device's capability does not
// tell: code for 8.0, compiled from its PTX, runs on later devices too, has no wait, and linked there would be a race.
// `ptxVersion` does: despite its name it is the architecture that the loaded code was written for, a tenth of
// the __CUDA_ARCH__ it was compiled with (80, 90, 100); CUB chooses its tunings by it. Kernels with the same parameters
// share one answer: they lie in one file, and a build compiles all files for the same architectures.
template <class... Parameters>
bool can_be_linked(void (*kernel)(Parameters...)) {
  constexpr int kDevices = 64;
  static std::atomic<int> known[kDevices];  // 0: not asked yet, 1: no, 2: yes
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= kDevices) return false;
  int state = known[device].load(std::memory_order_relaxed);
  if (state == 0) {
    cudaFuncAttributes attributes{};
    const cudaError_t error = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
    if (error != cudaSuccess) cudaGetLastError();  // else the next check of a launch would find it
    state = error == cudaSuccess && attributes.ptxVersion >= 90 ? 2 : 1;
    known[device].store(state, std::memory_order_relaxed);
  }
  return state == 2;
}

enum class After { everything, linked };

template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), int64_t blocks, int threads, cudaStream_t stream, After after,
                   const Arguments&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  // the kernels walk over their rows in steps of the grid, so that a grid of the largest size reaches any row
  config.gridDim = dim3(static_cast<unsigned>(std::min<int64_t>(blocks, std::numeric_limits<int32_t>::max())));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = after == After::linked && can_be_linked(kernel) ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace jocor_fast::cuda
