#include "counting_selection.cuh"
#include "launches.h"
#include "radix_selection.cuh"

namespace jocor_fast::cuda {

template <class Real>
cudaError_t launch_selection(const SelectionParams& params, cudaStream_t stream, After after) {
  if (params.rows >= int64_t{1} << 32) return cudaErrorInvalidValue;  // its counters have 32 bits
  const auto by_radix = selection_by_radix<Real>;
  // Asked whatever the size: a call during the capture of a graph cannot ask, and has the answer of a call before it,
  // which may have had fewer rows.
  const bool has_clusters = runs_as_cluster(by_radix, kClusterBlocks, kRadixThreads);
  if (params.rows <= kCountingRows) {
    return launch(selection_by_counting<Real>, {1, threads_of_counting(params.rows)}, stream, after, params);
  }
  const bool one_cluster = params.rows > kOneBlockRows && has_clusters;
  const int blocks = one_cluster ? kClusterBlocks : 1;
  return launch(by_radix, {blocks, threads_of_radix(params.rows, blocks), one_cluster}, stream, after, params);
}

template cudaError_t launch_selection<float>(const SelectionParams&, cudaStream_t, After);
template cudaError_t launch_selection<double>(const SelectionParams&, cudaStream_t, After);

}  // namespace jocor_fast::cuda
