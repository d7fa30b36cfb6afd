#include "launches.h"
#include "selection.cuh"

namespace jocor_fast::cuda {

template <class Real>
cudaError_t launch_selection(const SelectionParams& params, cudaStream_t stream, After after) {
  if (params.rows >= int64_t{1} << 32) return cudaErrorInvalidValue;  // its counters have 32 bits
  if (params.rows <= kCountingRows) {
    return launch(selection_by_counting<Real>, 1, kSelectionThreads, stream, after, params);
  }
  const auto by_radix = selection_by_radix<Real>;
  if (params.rows > kOneBlockRows && runs_as_cluster(by_radix, kClusterBlocks, kSelectionThreads)) {
    return launch_cluster(by_radix, kClusterBlocks, kSelectionThreads, stream, after, params);
  }
  return launch(by_radix, 1, kSelectionThreads, stream, after, params);
}

template cudaError_t launch_selection<float>(const SelectionParams&, cudaStream_t, After);
template cudaError_t launch_selection<double>(const SelectionParams&, cudaStream_t, After);

}  // namespace jocor_fast::cuda
