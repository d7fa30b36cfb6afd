#include "counting_selection.cuh"
#include "launches.h"
#include "radix_selection.cuh"

namespace jocor_fast::cuda {

template <class Real>
cudaError_t launch_selection(const SelectionParams& params, cudaStream_t stream, After after) {
  if (params.rows >= int64_t{1} << 32) return cudaErrorInvalidValue;  // its counters have 32 bits
  if (params.rows <= kCountingRows) {
    return launch(selection_by_counting<Real>, 1, threads_of_counting(params.rows), stream, after, params);
  }
  const auto by_radix = selection_by_radix<Real>;
  if (params.rows > kOneBlockRows && runs_as_cluster(by_radix, kClusterBlocks, kRadixThreads)) {
    const int threads = threads_of_radix(params.rows, kClusterBlocks);
    return launch_cluster(by_radix, kClusterBlocks, threads, stream, after, params);
  }
  return launch(by_radix, 1, threads_of_radix(params.rows, 1), stream, after, params);
}

template cudaError_t launch_selection<float>(const SelectionParams&, cudaStream_t, After);
template cudaError_t launch_selection<double>(const SelectionParams&, cudaStream_t, After);

}  // namespace jocor_fast::cuda
