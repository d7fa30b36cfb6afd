// Blocks that work on one batch together: a cluster, whose blocks run at the same time and reach each other's shared
// memory (compute capability 9.0). Code for older devices has clusters of one block.
#pragma once

#include <cuda_runtime.h>

namespace jocor_fast::cuda {

constexpr int kClusterBlocks = 8;  // every device with clusters can run as many, except a partition that is too small

struct Cluster {
  int rank = 0;  // of this block
  int blocks = 1;

  // A barrier for every thread of every block, with the meaning of __syncthreads().
  __device__ __forceinline__ void sync() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (blocks > 1) {
      __cluster_barrier_arrive();
      __cluster_barrier_wait();
      return;
    }
#endif
    __syncthreads();
  }

  // Where `mine`, in this block's shared memory, lies in that of block `of`.
  template <class T>
  __device__ __forceinline__ T* shared_of(int of, T* mine) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (blocks > 1) return static_cast<T*>(__cluster_map_shared_rank(mine, static_cast<unsigned>(of)));
#endif
    return mine;
  }
};

// The cluster of the calling block, in a kernel with a one-dimensional grid.
__device__ __forceinline__ Cluster cluster_of_block() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  return {static_cast<int>(__clusterRelativeBlockRank()), static_cast<int>(__clusterSizeInBlocks())};
#else
  return {};
#endif
}

}  // namespace jocor_fast::cuda
