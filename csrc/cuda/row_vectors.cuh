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

// How many neighbouring columns a thread adds up before its next ones, where the loss of a row is made:
// as many as its widest load brings, however narrow the loads are that its address allows. So the order of the sums
// follows from the row's type and length, and no bit of a loss from where its logits lie in memory.
template <class Logit>
constexpr int kChunk = 16 / sizeof(Logit);

// Columns come to lanes in chunks: lane l holds chunks l, l + lanes, l + 2 lanes ... This is the i-th that it holds.
template <int lanes, int chunk>
__device__ __forceinline__ int column_of(int lane, int i) {
  return (i / chunk * lanes + lane) * chunk + i % chunk;
}

// A lane's columns of a row, each chunk by loads of N. `whole_vectors`: `classes` is a multiple of N.
template <int lanes, int columns, int chunk, int N, bool whole_vectors, class Logit>
__device__ __forceinline__ void load_row(const Logit* z, int64_t classes, int lane, RealOf<Logit> (&values)[columns]) {
#pragma unroll
  for (int i = 0; i < columns; i += N) {
    const int64_t column = column_of<lanes, chunk>(lane, i);
    if (column + N <= classes) {
      load_columns<N>(z + column, values + i);
    } else {
      load_last_columns<N>(z + column, whole_vectors ? 0 : classes - column, values + i);
    }
  }
}

// Calls body(first column, values1[chunk], values2[chunk]) for each of a thread's chunks.
template <int chunk, int N, class Logit, class Body>
__device__ __forceinline__ void for_each_chunk(const Logit* z1, const Logit* z2, int64_t classes, Body body) {
  for (int64_t first = int64_t{threadIdx.x} * chunk; first < classes; first += int64_t{blockDim.x} * chunk) {
    RealOf<Logit> values1[chunk], values2[chunk];
#pragma unroll
    for (int i = 0; i < chunk; i += N) {
      const int64_t column = first + i;
      if (column + N <= classes) {
        load_columns<N>(z1 + column, values1 + i);
        load_columns<N>(z2 + column, values2 + i);
      } else {
        load_last_columns<N>(z1 + column, classes - column, values1 + i);
        load_last_columns<N>(z2 + column, classes - column, values2 + i);
      }
    }
    body(first, values1, values2);
  }
}

// The same of one network: body(first column, values[chunk]).
template <int chunk, int N, class Logit, class Body>
__device__ __forceinline__ void for_each_chunk(const Logit* z, int64_t classes, Body body) {
  for (int64_t first = int64_t{threadIdx.x} * chunk; first < classes; first += int64_t{blockDim.x} * chunk) {
    RealOf<Logit> values[chunk];
#pragma unroll
    for (int i = 0; i < chunk; i += N) {
      const int64_t column = first + i;
      if (column + N <= classes) {
        load_columns<N>(z + column, values + i);
      } else {
        load_last_columns<N>(z + column, classes - column, values + i);
      }
    }
    body(first, values);
  }
}

}  // namespace jocor_fast::cuda
