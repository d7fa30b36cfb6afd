// Steps 1 and 2 of a small batch in one launch of one block: at 128 x 10 the work is nanoseconds, and a second launch
// would cost more than all of it.
#pragma once

#include "counting_selection.cuh"
#include "row_losses.cuh"

namespace jocor_fast::cuda {

// Most threads of the block: each must have the registers for kSingleBlockColumns logits of each network, and float64's
// exp alone takes some forty.
template <class Real>
constexpr int kSingleBlockThreads = sizeof(Real) == 4 ? 1024 : 256;

template <class Logit, int mapping_index, int N>
__global__ void __launch_bounds__(kSingleBlockThreads<RealOf<Logit>>, 1)
    rows_and_selection_by_block(const __grid_constant__ RowParams rows,
                                const __grid_constant__ SelectionParams selection) {
  using Real = RealOf<Logit>;
  __shared__ CountingScratch<typename OrderBits<Real>::type> scratch;
  const int64_t rows_per_round = blockDim.x / kRowMappings[mapping_index].lanes;
  for (int64_t first = 0; first < rows.pair.rows; first += rows_per_round) {
    rows_of_block<Logit, mapping_index, N>(rows, first);
  }
  __syncthreads();  // every row's loss and state are written before the selection reads them
  select_by_counting<Real>(selection, scratch);
}

}  // namespace jocor_fast::cuda
