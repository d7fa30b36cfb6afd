// How the columns of a row come to threads, in registers or one vector after the other; steps 1 and 3 share it.
#pragma once

#include "../joint_loss.h"
#include "logits.cuh"

namespace jocor_fast::cuda {

template <class Logit>
__device__ __forceinline__ const Logit* first_logit1(const LogitPair& pair, int64_t row) {
  return static_cast<const Logit*>(pair.logits1) + row * pair.row_stride1;
}

template <class Logit>
__device__ __forceinline__ const Logit* first_logit2(const LogitPair& pair, int64_t row) {
  return static_cast<const Logit*>(pair.logits2) + row * pair.row_stride2;
}

template <class Real, int count>
__device__ __forceinline__ Real largest(const Real (&values)[count]) {
  Real max = values[0];
#pragma unroll
  for (int i = 1; i < count; ++i) max = larger(max, values[i]);
  return max;
}

// Columns come to lanes in vectors of N: lane l holds vectors l, l + lanes, l + 2 lanes ... `whole_vectors`: `classes`
// is a multiple of N.
template <int lanes, int columns, int N, bool whole_vectors, class Logit>
__device__ __forceinline__ void load_row(const Logit* z, int64_t classes, int lane, RealOf<Logit> (&values)[columns]) {
#pragma unroll
  for (int v = 0; v < columns / N; ++v) {
    const int64_t column = (v * lanes + lane) * N;
    if (column + N <= classes) {
      load_columns<N>(z + column, values + v * N);
    } else {
      load_last_columns<N>(z + column, whole_vectors ? 0 : classes - column, values + v * N);
    }
  }
}

// Calls body(first column, values1[N], values2[N]) for each of a thread's vectors.
template <int N, class Logit, class Body>
__device__ __forceinline__ void for_each_vector(const Logit* z1, const Logit* z2, int64_t classes, Body body) {
  for (int64_t column = int64_t{threadIdx.x} * N; column < classes; column += int64_t{blockDim.x} * N) {
    RealOf<Logit> values1[N], values2[N];
    if (column + N <= classes) {
      load_columns<N>(z1 + column, values1);
      load_columns<N>(z2 + column, values2);
    } else {
      load_last_columns<N>(z1 + column, classes - column, values1);
      load_last_columns<N>(z2 + column, classes - column, values2);
    }
    body(column, values1, values2);
  }
}

}  // namespace jocor_fast::cuda
