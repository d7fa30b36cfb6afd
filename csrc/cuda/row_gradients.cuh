// Step 3: gradients of the weighted sum of the chosen rows' losses. A row lies in registers or is looped over by a
// block, as in step 1. Its maxima are not among the four saved numbers and are found again. A row that trains neither
// network costs its zeros only: its logits are not read.
#pragma once

#include "../joint_loss.h"
#include "../joint_loss_math.h"
#include "../labels.h"
#include "logits.cuh"
#include "reductions.cuh"
#include "row_mapping.h"
#include "row_vectors.cuh"

namespace jocor_fast::cuda {

// What a row's gradient takes in addition to its logits.
template <class Logit>
struct RowTask {
  using Real = RealOf<Logit>;
  Logit* gradient1;  // null: there is nothing to compute
  Logit* gradient2;
  Real weight1, weight2;
  RowStatistics<Real> statistics;
  int64_t label;
  JointLoss<RealOf<Logit>> loss = JointLoss<RealOf<Logit>>(JointLossSettings{});

  // Each network's gradient needs the other's logits where the divergence has a weight, and only there: at lambda = 0
  // they may be anything.
  __device__ __forceinline__ bool reads1() const {
    return gradient1 != nullptr || (loss.agreement != 0 && gradient2 != nullptr);
  }
  __device__ __forceinline__ bool reads2() const {
    return gradient2 != nullptr || (loss.agreement != 0 && gradient1 != nullptr);
  }
};

template <int N, class Logit>
__device__ __forceinline__ void zero_row(Logit* gradient, int64_t classes, int lane, int lanes) {
#pragma unroll 4
  for (int64_t column = int64_t{lane} * N; column < classes; column += int64_t{lanes} * N) {
    store_zeros<N>(gradient + column);
  }
}

// The row's `lanes` threads write the zeros of the networks that it does not train. Returns what is left to do.
template <int N, class Logit>
__device__ __forceinline__ RowTask<Logit> begin_row(const GradientParams& params, int64_t row, int lane, int lanes) {
  using Real = RealOf<Logit>;
  const LogitPair& pair = params.pair;
  // Every load is issued before the first number is used, and before anything is written.
  const PendingLabel pending(pair, row);
  const bool chosen1 = params.selected1 == nullptr || params.selected1[row] != 0;
  const bool chosen2 = params.selected2 == nullptr || params.selected2[row] != 0;
  const int64_t num_selected1 = params.num_selected1 != nullptr ? *params.num_selected1 : 1;
  const int64_t num_selected2 = params.num_selected2 != nullptr ? *params.num_selected2 : 1;
  const Real upstream = static_cast<const Real*>(params.grad_output)[row * params.grad_stride];
  RowTask<Logit> task{};
  task.statistics = static_cast<const RowStatistics<Real>*>(params.statistics)[row];
  task.weight1 = upstream * (Real(1) / static_cast<Real>(num_selected1));
  task.weight2 = upstream * (Real(1) / static_cast<Real>(num_selected2));
  const Label label = pending.arrived(pair);
  task.label = label.value;
  task.loss = JointLoss<Real>(pair);
  if (params.grad1 != nullptr) task.gradient1 = static_cast<Logit*>(params.grad1) + row * pair.classes;
  if (params.grad2 != nullptr) task.gradient2 = static_cast<Logit*>(params.grad2) + row * pair.classes;
  const bool trains =
      label.valid && task.statistics.log_sum1 == task.statistics.log_sum1;  // else the loss is not finite
  if (task.gradient1 != nullptr && !(trains && chosen1)) {
    zero_row<N>(task.gradient1, pair.classes, lane, lanes);  // written, not multiplied by 0: 0 * NaN is NaN
    task.gradient1 = nullptr;
  }
  if (task.gradient2 != nullptr && !(trains && chosen2)) {
    zero_row<N>(task.gradient2, pair.classes, lane, lanes);
    task.gradient2 = nullptr;
  }
  return task;
}

// N neighbouring columns of both networks, from `column` on.
template <int N, class Logit>
__device__ __forceinline__ void write_gradients(const RowTask<Logit>& task, int64_t column,
                                                const RealOf<Logit>* values1, const RealOf<Logit>* values2,
                                                RealOf<Logit> max1, RealOf<Logit> max2) {
  using Real = RealOf<Logit>;
  Real slopes1[N], slopes2[N];
  const int64_t ahead = task.label - column;  // compared in 32 bits: with 64 the code for 10.0 spills
  const int label_at = ahead >= 0 && ahead < N ? static_cast<int>(ahead) : N;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    // the maximum is subtracted first: lse, as large as the logits, would cost digits
    const Real log_p = (values1[i] - max1) - task.statistics.log_sum1;
    const Real log_q = (values2[i] - max2) - task.statistics.log_sum2;
    const Real p = exponential(log_p), q = exponential(log_q);
    const Real label_part = i == label_at ? task.loss.label_gradient() : Real(0);
    if (task.loss.agreement != 0) {
      const Real delta = finite_log_ratio(log_p, log_q);
      slopes1[i] = task.loss.class_gradient(p, q, delta, task.statistics.kl12) + label_part;
      slopes2[i] = task.loss.class_gradient(q, p, -delta, task.statistics.kl21) + label_part;
    } else {
      slopes1[i] = p + label_part;
      slopes2[i] = q + label_part;
    }
    slopes1[i] *= task.weight1;
    slopes2[i] *= task.weight2;
  }
  if (task.gradient1 != nullptr) store_columns<N>(task.gradient1 + column, slopes1);
  if (task.gradient2 != nullptr) store_columns<N>(task.gradient2 + column, slopes2);
}

// Blocks per multiprocessor in the launch bounds: 4 x 128 threads leave 128 registers each. Left to itself, ptxas takes
// no more than 96 for 10.0, where half-precision logits that are loaded one by one spill.
template <class Logit, int N>
constexpr int kGradientRowBlocks = sizeof(Logit) == 2 && N == 1 ? 4 : 0;  // 0: ptxas chooses

// One row for each group of lanes. The shuffles want every lane of the warp: rows that have nothing to read, or lie
// past the last one, take part with zeros. `classes` is a multiple of N.
template <class Logit, int mapping_index, int N>
__global__ void __launch_bounds__(kRowMappings[mapping_index].threads, kGradientRowBlocks<Logit, N>)
    row_gradients_in_registers(const __grid_constant__ GradientParams params) {
  using Real = RealOf<Logit>;
  constexpr RowMapping mapping = kRowMappings[mapping_index];
  const LogitPair& pair = params.pair;
  const int lane = threadIdx.x % mapping.lanes;
  const int64_t rows_per_block = blockDim.x / mapping.lanes, step = gridDim.x * rows_per_block;
  for (int64_t first = blockIdx.x * rows_per_block; first < pair.rows; first += step) {
    const int64_t row = first + threadIdx.x / mapping.lanes;
    RowTask<Logit> task{};
    if (row < pair.rows) task = begin_row<N, Logit>(params, row, lane, mapping.lanes);
    const bool reads1 = task.reads1(), reads2 = task.reads2();
    if (!__any_sync(kWholeWarp, reads1 || reads2)) continue;

    Real values1[mapping.columns] = {}, values2[mapping.columns] = {};
    constexpr auto load = load_row<mapping.lanes, mapping.columns, N, N, /*whole_vectors=*/true, Logit>;
    if (reads1) load(first_logit1<Logit>(pair, row), pair.classes, lane, values1);
    if (reads2) load(first_logit2<Logit>(pair, row), pair.classes, lane, values2);
    const Real max1 = reduce_lanes<mapping.lanes>(largest(values1), Max{});
    const Real max2 = reduce_lanes<mapping.lanes>(largest(values2), Max{});
    if (!reads1 && !reads2) continue;
#pragma unroll
    for (int i = 0; i < mapping.columns; i += N) {
      const int64_t column = column_of<mapping.lanes, N>(lane, i);
      if (column < pair.classes) write_gradients<N>(task, column, values1 + i, values2 + i, max1, max2);
    }
  }
}

template <class Logit, int N>
__global__ void __launch_bounds__(kBlockRowThreads, kGradientBlocks)
    row_gradients_by_block(const __grid_constant__ GradientParams params) {
  using Real = RealOf<Logit>;
  __shared__ Real scratch[2 * kMaxWarps];
  const LogitPair& pair = params.pair;
  for (int64_t row = blockIdx.x; row < pair.rows; row += gridDim.x) {
    const RowTask<Logit> task = begin_row<N, Logit>(params, row, threadIdx.x, blockDim.x);
    const bool reads1 = task.reads1(), reads2 = task.reads2();
    if (!reads1 && !reads2) continue;  // all threads alike
    // logits that must not be read are replaced by the other network's: the result does not depend on them
    const Logit* z1 = reads1 ? first_logit1<Logit>(pair, row) : first_logit2<Logit>(pair, row);
    const Logit* z2 = reads2 ? first_logit2<Logit>(pair, row) : first_logit1<Logit>(pair, row);
    Real max[2] = {minus_infinity<Real>(), minus_infinity<Real>()};
    for_each_chunk<N, N>(z1, z2, pair.classes, [&](int64_t, const auto& values1, const auto& values2) {
      max[0] = larger(max[0], largest(values1));
      max[1] = larger(max[1], largest(values2));
    });
    reduce_block(max, minus_infinity<Real>(), Max{}, scratch);
    for_each_chunk<N, N>(z1, z2, pair.classes, [&](int64_t column, const auto& values1, const auto& values2) {
      write_gradients<N>(task, column, values1, values2, max[0], max[1]);
    });
  }
}

}  // namespace jocor_fast::cuda
