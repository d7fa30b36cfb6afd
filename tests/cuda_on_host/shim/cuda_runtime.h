// Stands in for the toolkit's header of this name: with it a host compiler turns the kernel sources, unchanged, into
// functions that run here. Only what the kernels use is there, with the meaning that it has on a device of capability
// 9.0; a use that is undefined on a device (lanes that meet at different operations, a barrier that some threads never
// reach) is an error and not a guess. fibres.cpp and real_threads.cpp run the threads.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <type_traits>
#include <vector>

#define __CUDA_ARCH__ 900
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

// A block's threads are fibres of one thread of the host, which is fast; or, for the sanitizers, real threads. Blocks
// run one after the other, those of a cluster in turns: so each of these is a thread of the host with memory of its
// own.
#ifdef CUDA_ON_HOST_REAL_THREADS
#define CUDA_ON_HOST_PER_THREAD thread_local
#define __shared__ static
#else
#define CUDA_ON_HOST_PER_THREAD
#define __shared__ static thread_local
#endif

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};

// --- the device -----------------------------------------------------------------------------------------------------

namespace cuda_on_host {

inline int from_environment(const char* name, int otherwise) {
  const char* number = std::getenv(name);
  return number != nullptr ? std::atoi(number) : otherwise;
}

// How the device is asked to run: threads in a block at most (the kernels must hold for any number of whole warps), and
// in which order the threads of a warp and the warps of a block take turns. A thread that reads what a later one has
// yet to write reads it too early in one order, so every case is run in both.
struct Settings {
  unsigned most_threads = 1024;
  unsigned most_blocks = 0x7fffffff;
  bool descending = false;
  int planted_fault = from_environment("PLANTED_FAULT", 0);  // the number of one of the faults in mutants.py, or 0
  int code_for = from_environment("CODE_FOR", 90);           // the architecture of the loaded code; 0: none fits
  int clusters = from_environment("CLUSTERS", 1);            // that the device has room for
  bool refuses_questions = false;                            // about a kernel's code, as it may within a capture
};
extern Settings settings;

// What is exchanged at a meeting of a warp's lanes: `bits` of each lane; returns those of all 32.
enum class Meeting { shuffle_xor, shuffle_up, shuffle, ballot, any };
const uint64_t* meet_warp(Meeting meeting, unsigned mask, uint64_t bits);
// Waits for the block; returns how many threads came with `predicate`.
int meet_block(bool predicate);
void wait_for_previous_kernel();
unsigned add_atomically(unsigned* counter, unsigned value);

// Clusters have as many blocks as the grid.
unsigned rank_in_cluster();
unsigned blocks_of_cluster();
void arrive_at_cluster_barrier();
void wait_at_cluster_barrier();
void* shared_memory_of(const void* mine, unsigned rank);

// What the next linked kernel's predecessor writes: garbage until the first thread has waited for it. On a device the two
// run at the same time; here the first has ended when the second starts.
struct Bytes {
  void* first;
  size_t count;
};
inline std::vector<Bytes> written_before;

// Runs the kernel for every thread of the grid. Returns what went wrong, or null.
const char* run_grid(dim3 grid, dim3 block, bool linked, bool cluster, const std::function<void()>& kernel);
extern const char* last_error;

// What was launched, in order, for the tests to look at and to clear.
struct Launch {
  const void* kernel;
  unsigned blocks, threads;
  bool linked, cluster;
};
inline std::vector<Launch> launches;

template <class T>
uint64_t bits_of(T value) {
  static_assert(sizeof(T) <= sizeof(uint64_t) && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

template <class T>
T value_of(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace cuda_on_host

extern CUDA_ON_HOST_PER_THREAD dim3 threadIdx, blockIdx, blockDim, gridDim;

inline void __syncthreads() { cuda_on_host::meet_block(false); }
inline int __syncthreads_count(int predicate) { return cuda_on_host::meet_block(predicate != 0); }
inline int __syncthreads_or(int predicate) { return cuda_on_host::meet_block(predicate != 0) > 0; }

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance) {
  using namespace cuda_on_host;
  const uint64_t* lanes = meet_warp(Meeting::shuffle_xor, mask, bits_of(value));
  return cuda_on_host::value_of<T>(lanes[(threadIdx.x % 32) ^ unsigned(distance)]);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance) {
  using namespace cuda_on_host;
  const uint64_t* lanes = meet_warp(Meeting::shuffle_up, mask, bits_of(value));
  const unsigned lane = threadIdx.x % 32;
  return cuda_on_host::value_of<T>(lanes[lane >= distance ? lane - distance : lane]);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int source) {
  using namespace cuda_on_host;
  return cuda_on_host::value_of<T>(meet_warp(Meeting::shuffle, mask, bits_of(value))[source % 32]);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const uint64_t* lanes = cuda_on_host::meet_warp(cuda_on_host::Meeting::ballot, mask, predicate != 0);
  unsigned result = 0;
  for (int lane = 0; lane < 32; ++lane) result |= unsigned(lanes[lane]) << lane;
  return result;
}
inline int __any_sync(unsigned mask, int predicate) {
  const uint64_t* lanes = cuda_on_host::meet_warp(cuda_on_host::Meeting::any, mask, predicate != 0);
  for (int lane = 0; lane < 32; ++lane) {
    if (lanes[lane] != 0) return 1;
  }
  return 0;
}
inline unsigned atomicAdd(unsigned* counter, unsigned value) { return cuda_on_host::add_atomically(counter, value); }

inline int __ffs(unsigned bits) { return __builtin_ffs(static_cast<int>(bits)); }
inline int __clz(int bits) { return bits == 0 ? 32 : __builtin_clz(static_cast<unsigned>(bits)); }
inline int __clzll(long long bits) { return bits == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(bits)); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline double __dmul_rn(double a, double b) { return a * b; }  // the host fuses nothing without -mfma
inline float __int_as_float(int bits) { return cuda_on_host::value_of<float>(static_cast<uint32_t>(bits)); }
inline double __longlong_as_double(long long bits) {
  return cuda_on_host::value_of<double>(static_cast<uint64_t>(bits));
}

inline unsigned __clusterRelativeBlockRank() { return cuda_on_host::rank_in_cluster(); }
inline unsigned __clusterSizeInBlocks() { return cuda_on_host::blocks_of_cluster(); }
inline void __cluster_barrier_arrive() { cuda_on_host::arrive_at_cluster_barrier(); }
inline void __cluster_barrier_wait() { cuda_on_host::wait_at_cluster_barrier(); }
inline void* __cluster_map_shared_rank(const void* mine, unsigned rank) {
  return cuda_on_host::shared_memory_of(mine, rank);
}

inline void cudaTriggerProgrammaticLaunchCompletion() {}
inline void cudaGridDependencySynchronize() { cuda_on_host::wait_for_previous_kernel(); }

// --- the runtime ----------------------------------------------------------------------------------------------------

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorLaunchFailure = 719
};
using cudaStream_t = void*;
struct cudaFuncAttributes {
  int ptxVersion;
};
enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization, cudaLaunchAttributeClusterDimension };
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
    struct {
      unsigned x, y, z;
    } clusterDim;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};

inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  if (cuda_on_host::settings.refuses_questions) return cudaErrorInvalidValue;
  attributes->ptxVersion = cuda_on_host::settings.code_for;
  return cudaSuccess;
}
inline cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t*) {
  if (cuda_on_host::settings.refuses_questions) return cudaErrorInvalidValue;
  *clusters = cuda_on_host::settings.clusters;
  return cudaSuccess;
}
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaSuccess) return "no error";
  if (error == cudaErrorNoKernelImageForDevice) return "no kernel image is available for execution on the device";
  return error == cudaErrorInvalidValue ? "invalid argument" : cuda_on_host::last_error;
}

enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
template <class T>
cudaError_t cudaMalloc(T** memory, size_t bytes) {
  *memory = static_cast<T*>(std::malloc(bytes));
  return cudaSuccess;
}
template <class T>
cudaError_t cudaFree(T* memory) {
  std::free(memory);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

// Unlike on a device, the kernel has ended when this returns, and its errors are this call's.
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               const Arguments&... arguments) {
  if (cuda_on_host::settings.code_for == 0) return cudaErrorNoKernelImageForDevice;
  if (config->gridDim.x == 0 || config->blockDim.x == 0 || config->blockDim.x > 1024) return cudaErrorInvalidValue;
  bool linked = false, cluster = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization) {
      linked = attribute.val.programmaticStreamSerializationAllowed != 0;
    } else {
      cluster = true;
      if (attribute.val.clusterDim.x != config->gridDim.x || config->gridDim.x > 8) return cudaErrorInvalidValue;
    }
  }
  cuda_on_host::launches.push_back(
      {reinterpret_cast<const void*>(kernel), config->gridDim.x, config->blockDim.x, linked, cluster});
  cuda_on_host::last_error =
      cuda_on_host::run_grid(config->gridDim, config->blockDim, linked, cluster, [&] { kernel(arguments...); });
  return cuda_on_host::last_error == nullptr ? cudaSuccess : cudaErrorLaunchFailure;
}
