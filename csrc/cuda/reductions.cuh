// Sums, maxima and minima over the lanes of a group or over a block, in an order that does not change from run to run.
#pragma once

#include <cuda_runtime.h>

#include "logits.cuh"

namespace jocor_fast::cuda {

constexpr unsigned kWholeWarp = 0xffffffffu;
constexpr int kWarp = 32;
constexpr int kMaxWarps = 32;  // of a block

__device__ __forceinline__ int lane_of_thread() { return static_cast<int>(threadIdx.x % kWarp); }
__device__ __forceinline__ int warp_of_thread() { return static_cast<int>(threadIdx.x / kWarp); }
__device__ __forceinline__ int warps_of_block() { return static_cast<int>(blockDim.x / kWarp); }

struct Sum {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};

struct Max {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return larger(a, b);
  }
};

struct Min {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a < b ? a : b;
  }
};

// Over groups of `lanes` neighbouring threads; the whole warp must take part. Every lane gets the same bits: a lane and
// its partner add the same two numbers.
template <int lanes, class T, class Operation>
__device__ __forceinline__ T reduce_lanes(T value, Operation operation) {
#pragma unroll
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    value = operation(value, __shfl_xor_sync(kWholeWarp, value, distance));
  }
  return value;
}

// Each of `count` values over the block; every thread gets the results. `scratch` is shared: kMaxWarps * count.
template <int count, class T, class Operation>
__device__ __forceinline__ void reduce_block(T (&values)[count], T identity, Operation operation, T* scratch) {
  const int lane = lane_of_thread(), warp = warp_of_thread(), warps = warps_of_block();
#pragma unroll
  for (int i = 0; i < count; ++i) {
    values[i] = reduce_lanes<kWarp>(values[i], operation);
    if (lane == 0) scratch[i * kMaxWarps + warp] = values[i];
  }
  __syncthreads();  // each warp's result is written before any is read
#pragma unroll
  for (int i = 0; i < count; ++i) {
    values[i] = reduce_lanes<kWarp>(lane < warps ? scratch[i * kMaxWarps + lane] : identity, operation);
  }
  __syncthreads();  // all have read before the next reduction writes
}

}  // namespace jocor_fast::cuda
