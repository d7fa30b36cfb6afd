// Launching a kernel, alone or linked to the one before it: a linked kernel's blocks may start while that one still
// runs (programmatic dependent launch, compute capability 9.0), and wait inside for what it has written.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>

namespace jocor_fast::cuda {

// Called in the first kernel of a pair: from here on the second may be scheduled. An early call is safe, for the second
// waits until the whole of the first has ended.
__device__ __forceinline__ void allow_next_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// Called in the second, before it touches memory: returns when the first has ended and its writes are visible.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// A yes or no about a kernel, asked for once on each device and then remembered.
class PerDevice {
 public:
  // `ask(yes)` sets `yes`. If it fails, the answer is no this time, and the next call asks again: the error may be
  // temporary, such as that of a call during the capture of a graph. It is cleared, or the next check of a launch would
  // find it.
  template <class Ask>
  bool operator()(Ask ask) {
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess || device >= kDevices) return false;
    int answer = answers_[device].load(std::memory_order_relaxed);
    if (answer == kNotAsked) {
      bool yes = false;
      if (ask(yes) != cudaSuccess) {
        cudaGetLastError();
        return false;
      }
      answer = yes ? kYes : kNo;
      answers_[device].store(answer, std::memory_order_relaxed);
    }
    return answer == kYes;
  }

 private:
  static constexpr int kDevices = 64, kNotAsked = 0, kNo = 1, kYes = 2;
  std::atomic<int> answers_[kDevices] = {};
};

// Whether a kernel's code, as loaded on the current device, is for compute capability 9.0 or later, and so holds the
// wait above and the barriers of a cluster. The device's capability does not tell: code for 8.0, compiled from its PTX,
// runs on later devices too, but without the wait: to link it there would be a race.
// `ptxVersion` does: despite its name it is the architecture that the loaded code was written for, a tenth of
// the __CUDA_ARCH__ it was compiled with (80, 90, 100); CUB chooses its tunings by it. Kernels with the same parameters
// share one answer: they lie in one file, and a build compiles all files for the same architectures.
template <class... Parameters>
bool is_code_for_9_0(void (*kernel)(Parameters...)) {
  static PerDevice known;
  return known([kernel](bool& yes) {
    cudaFuncAttributes attributes{};
    const cudaError_t error = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
    yes = attributes.ptxVersion >= 90;
    return error;
  });
}

enum class After { everything, linked };

// Blocks along one dimension, and threads in each.
struct Grid {
  int64_t blocks;
  int threads;
  bool one_cluster = false;  // all blocks form one cluster: only if runs_as_cluster
};

// What cudaLaunchKernelEx is given, with the attributes that it points to.
struct Configuration {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t launch = {};

  Configuration(Grid grid, cudaStream_t stream, bool linked) {
    // the kernels walk over their rows in steps of the grid, and a grid of the largest size reaches any row
    launch.gridDim = dim3(static_cast<unsigned>(std::min<int64_t>(grid.blocks, std::numeric_limits<int32_t>::max())));
    launch.blockDim = dim3(static_cast<unsigned>(grid.threads));
    launch.stream = stream;
    launch.attrs = attributes;
    if (linked) {
      cudaLaunchAttribute& attribute = attributes[launch.numAttrs++];
      attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attribute.val.programmaticStreamSerializationAllowed = 1;
    }
    if (grid.one_cluster) {
      cudaLaunchAttribute& attribute = attributes[launch.numAttrs++];
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim = {launch.gridDim.x, 1, 1};
    }
  }
  Configuration(const Configuration&) = delete;
  Configuration& operator=(const Configuration&) = delete;
};

template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), Grid grid, cudaStream_t stream, After after,
                   const Arguments&... arguments) {
  const Configuration configuration(grid, stream, after == After::linked && is_code_for_9_0(kernel));
  return cudaLaunchKernelEx(&configuration.launch, kernel, arguments...);
}

// Whether the device runs this kernel as one cluster: a partition of it may have too few multiprocessors. Kernels with
// the same parameters share one answer.
template <class... Parameters>
bool runs_as_cluster(void (*kernel)(Parameters...), int blocks, int threads) {
  static PerDevice known;
  return is_code_for_9_0(kernel) && known([=](bool& yes) {
           const Configuration configuration({blocks, threads, /*one_cluster=*/true}, nullptr, /*linked=*/false);
           int clusters = 0;
           const auto code = reinterpret_cast<const void*>(kernel);
           const cudaError_t error = cudaOccupancyMaxActiveClusters(&clusters, code, &configuration.launch);
           yes = clusters > 0;
           return error;
         });
}

}  // namespace jocor_fast::cuda
