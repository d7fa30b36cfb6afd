// What fibres.cpp and real_threads.cpp share: the walk over the blocks of a grid.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

namespace cuda_on_host {

constexpr unsigned kWarp = 32;
constexpr unsigned kWholeWarp = 0xffffffffu;

inline constexpr char kPartOfWarp[] = "a warp operation names lanes that do not take part: only whole warps are run";
inline constexpr char kLanesDiverged[] = "lanes of a warp meet at different operations";
inline constexpr char kNotReached[] = "a barrier or a warp operation is not reached by every thread that it waits for";
inline constexpr char kNotArrived[] = "a thread waits at a barrier of the cluster at which it has not arrived";
inline constexpr char kNotStarted[] = "a block reads the shared memory of one that need not have started";
inline constexpr char kNotWaited[] = "a linked kernel ended without waiting for the one before it";

// Calls run_block(block index, threads, grid) for each block, one after the other, until one returns an error.
template <class RunBlock>
const char* for_each_block(dim3 grid, dim3 block, RunBlock run_block) {
  const unsigned threads = std::min(block.x, settings.most_threads);
  const dim3 size(std::min(grid.x, settings.most_blocks));
  for (unsigned index = 0; index < size.x; ++index) {
    if (const char* error = run_block(index, threads, size)) return error;
  }
  return nullptr;
}

}  // namespace cuda_on_host
