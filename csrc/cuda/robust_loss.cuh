// The two kernels of the robust losses of one network: loss and statistics of each row, and its gradient. Rows come to
// threads as those of a pair do, by the same table.
#pragma once

#include "../joint_loss.h"
#include "../joint_loss_math.h"
#include "../labels.h"
#include "../robust_rows.h"
#include "linked_launch.cuh"
#include "logits.cuh"
#include "reductions.cuh"
#include "row_gradients.cuh"
#include "row_losses.cuh"
#include "row_mapping.h"
#include "row_vectors.cuh"

namespace jocor_fast::cuda {

template <class Logit>
__device__ __forceinline__ const Logit* first_logit(const Logits& logits, int64_t row) {
  return static_cast<const Logit*>(logits.logits) + row * logits.row_stride;
}

// Sums over the columns of a row; those that are masked or past its end are no classes.
template <class Real>
struct RobustSums {
  Real exponentials = 0, shifted = 0, classes = 0;

  __device__ __forceinline__ void add_class(Real shifted_logit) {
    if (shifted_logit == minus_infinity<Real>()) return;
    shifted += shifted_logit;
    classes += Real(1);
  }
};

// One thread of those that share the row calls this.
template <class Logit>
__device__ __forceinline__ void write_row(const RobustRowParams& params, int64_t row, const Label& label,
                                          const Logit* z, RealOf<Logit> max, const RobustSums<RealOf<Logit>>& sums) {
  using Real = RealOf<Logit>;
  RobustRow<Real> result{};
  if (label.valid) {
    const Real shifted_label = to_real(z[label.value]) - max;
    const RobustLoss<Real> loss(params.settings);
    const Real log_sum = logarithm(sums.exponentials);
    result = loss.of_row(
        log_sum, shifted_label, sums.shifted, sums.classes, [](Real x) { return exponential(x); },
        [](Real x) { return logarithm(x); });
  }
  write_robust_row(params, row, label, result);
}

// --- losses ---------------------------------------------------------------------------------------------------------

// The shuffles want every lane, so groups past the last row compute that one again and write nothing.
template <class Logit, int mapping_index, int N>
__global__ void __launch_bounds__(kRowMappings[mapping_index].threads)
    robust_losses_in_registers(const __grid_constant__ RobustRowParams params) {
  using Real = RealOf<Logit>;
  constexpr RowMapping mapping = kRowMappings[mapping_index];
  allow_next_kernel();
  const Logits& logits = params.logits;
  const int lane = threadIdx.x % mapping.lanes;
  const int64_t rows_per_block = blockDim.x / mapping.lanes, step = gridDim.x * rows_per_block;
  for (int64_t first = blockIdx.x * rows_per_block; first < logits.rows; first += step) {
    const int64_t row = first + threadIdx.x / mapping.lanes;
    const int64_t read_row = row < logits.rows ? row : logits.rows - 1;
    const Logit* z = first_logit<Logit>(logits, read_row);
    const PendingLabel label(logits, read_row);  // loaded with the logits; used when they are done
    Real values[mapping.columns];
    load_row<mapping.lanes, mapping.columns, kChunk<Logit>, N, /*whole_vectors=*/false>(z, logits.classes, lane,
                                                                                        values);
    const Real max = reduce_lanes<mapping.lanes>(largest(values), Max{});
    RobustSums<Real> sums;
#pragma unroll
    for (int i = 0; i < mapping.columns; ++i) {
      const Real shifted = values[i] - max;
      sums.exponentials += exponential(shifted);
      sums.add_class(shifted);
    }
    sums.exponentials = reduce_lanes<mapping.lanes>(sums.exponentials, Sum{});
    sums.shifted = reduce_lanes<mapping.lanes>(sums.shifted, Sum{});
    sums.classes = reduce_lanes<mapping.lanes>(sums.classes, Sum{});
    if (lane == 0 && row < logits.rows) write_row(params, row, label.arrived(logits), z, max, sums);
  }
}

// For the sum over the classes the row is read a second time, relative to the maximum: without it large logits would
// cost digits.
template <class Logit, int N>
__global__ void __launch_bounds__(kBlockRowThreads)
    robust_losses_by_block(const __grid_constant__ RobustRowParams params) {
  using Real = RealOf<Logit>;
  constexpr int chunk = kChunk<Logit>;
  __shared__ Real scratch[2 * kMaxWarps];
  allow_next_kernel();
  const Logits& logits = params.logits;
  const bool takes_class_sum = params.sieve || RobustLoss<Real>(params.settings).takes_class_sum();
  for (int64_t row = blockIdx.x; row < logits.rows; row += gridDim.x) {
    const Logit* z = first_logit<Logit>(logits, row);
    RunningSum<Real> running;
    for_each_chunk<chunk, N>(z, logits.classes, [&](int64_t, const auto& values) { running.add(values); });
    Real max[1] = {running.max};
    reduce_block(max, minus_infinity<Real>(), Max{}, scratch);
    running.rescale(max[0]);
    Real exponentials[1] = {running.sum};
    reduce_block(exponentials, Real(0), Sum{}, scratch);
    RobustSums<Real> sums;
    sums.exponentials = exponentials[0];
    if (takes_class_sum) {
      for_each_chunk<chunk, N>(z, logits.classes, [&](int64_t, const auto& values) {
#pragma unroll
        for (int i = 0; i < chunk; ++i) sums.add_class(values[i] - max[0]);
      });
      Real of_classes[2] = {sums.shifted, sums.classes};
      reduce_block(of_classes, Real(0), Sum{}, scratch);
      sums.shifted = of_classes[0];
      sums.classes = of_classes[1];
    }
    if (threadIdx.x == 0) write_row(params, row, read_label(logits, row), z, max[0], sums);
  }
}

// --- gradients ------------------------------------------------------------------------------------------------------

// What a row's gradient takes in addition to its logits.
template <class Logit>
struct RobustTask {
  using Real = RealOf<Logit>;
  Logit* gradient;  // null: there is nothing to compute
  Real weight;
  RobustStatistics<Real> statistics;
  int64_t label;
};

// If the row does not train, its `lanes` threads write its zeros. Returns what is left to do.
template <int N, class Logit>
__device__ __forceinline__ RobustTask<Logit> begin_row(const RobustGradientParams& params, int64_t row, int lane,
                                                       int lanes) {
  using Real = RealOf<Logit>;
  const Logits& logits = params.logits;
  // Every load is issued before the first number is used, and before anything is written.
  const PendingLabel pending(logits, row);
  const bool chosen = params.selected == nullptr || params.selected[row] != 0;
  const int64_t num_selected = params.num_selected != nullptr ? *params.num_selected : 1;
  const Real upstream = static_cast<const Real*>(params.grad_output)[row * params.grad_stride];
  RobustTask<Logit> task{};
  task.statistics = static_cast<const RobustStatistics<Real>*>(params.statistics)[row];
  task.weight = upstream * (Real(1) / static_cast<Real>(num_selected));
  const Label label = pending.arrived(logits);
  task.label = label.value;
  Logit* const gradient = static_cast<Logit*>(params.grad) + row * logits.classes;
  const bool finite = task.statistics.log_sum == task.statistics.log_sum;
  if (label.valid && finite && chosen) {
    task.gradient = gradient;
  } else {
    zero_row<N>(gradient, logits.classes, lane, lanes);  // written, not multiplied by 0: 0 * NaN is NaN
  }
  return task;
}

// N neighbouring columns, from `column` on.
template <int N, class Logit>
__device__ __forceinline__ void write_gradient(const RobustTask<Logit>& task, int64_t column,
                                               const RealOf<Logit>* values, RealOf<Logit> max) {
  using Real = RealOf<Logit>;
  Real slopes[N];
  const int64_t ahead = task.label - column;
  const int label_at = ahead >= 0 && ahead < N ? static_cast<int>(ahead) : N;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const Real shifted = values[i] - max;  // max is subtracted first: lse, as large as the logits, would cost digits
    const Real p = exponential(shifted - task.statistics.log_sum);
    const Real class_part = shifted == minus_infinity<Real>() ? Real(0) : task.statistics.unmasked;
    const Real label_part = i == label_at ? task.statistics.label : Real(0);
    slopes[i] = ((p * task.statistics.scale - class_part) - label_part) * task.weight;
  }
  store_columns<N>(task.gradient + column, slopes);
}

// `classes` is a multiple of N. The shuffles want every lane of the warp: rows that have nothing to read, or lie past
// the last one, take part with zeros.
template <class Logit, int mapping_index, int N>
__global__ void __launch_bounds__(kRowMappings[mapping_index].threads)
    robust_gradients_in_registers(const __grid_constant__ RobustGradientParams params) {
  using Real = RealOf<Logit>;
  constexpr RowMapping mapping = kRowMappings[mapping_index];
  const Logits& logits = params.logits;
  const int lane = threadIdx.x % mapping.lanes;
  const int64_t rows_per_block = blockDim.x / mapping.lanes, step = gridDim.x * rows_per_block;
  for (int64_t first = blockIdx.x * rows_per_block; first < logits.rows; first += step) {
    const int64_t row = first + threadIdx.x / mapping.lanes;
    RobustTask<Logit> task{};
    if (row < logits.rows) task = begin_row<N, Logit>(params, row, lane, mapping.lanes);
    const bool trains = task.gradient != nullptr;
    if (!__any_sync(kWholeWarp, trains)) continue;

    Real values[mapping.columns] = {};
    constexpr auto load = load_row<mapping.lanes, mapping.columns, N, N, /*whole_vectors=*/true, Logit>;
    if (trains) load(first_logit<Logit>(logits, row), logits.classes, lane, values);
    const Real max = reduce_lanes<mapping.lanes>(largest(values), Max{});
    if (!trains) continue;
#pragma unroll
    for (int i = 0; i < mapping.columns; i += N) {
      const int64_t column = column_of<mapping.lanes, N>(lane, i);
      if (column < logits.classes) write_gradient<N>(task, column, values + i, max);
    }
  }
}

template <class Logit, int N>
__global__ void __launch_bounds__(kBlockRowThreads)
    robust_gradients_by_block(const __grid_constant__ RobustGradientParams params) {
  using Real = RealOf<Logit>;
  __shared__ Real scratch[kMaxWarps];
  const Logits& logits = params.logits;
  for (int64_t row = blockIdx.x; row < logits.rows; row += gridDim.x) {
    const RobustTask<Logit> task = begin_row<N, Logit>(params, row, threadIdx.x, blockDim.x);
    if (task.gradient == nullptr) continue;  // all threads alike
    const Logit* z = first_logit<Logit>(logits, row);
    Real max[1] = {minus_infinity<Real>()};
    for_each_chunk<N, N>(z, logits.classes,
                         [&](int64_t, const auto& values) { max[0] = larger(max[0], largest(values)); });
    reduce_block(max, minus_infinity<Real>(), Max{}, scratch);
    for_each_chunk<N, N>(z, logits.classes,
                         [&](int64_t column, const auto& values) { write_gradient<N>(task, column, values, max[0]); });
  }
}

}  // namespace jocor_fast::cuda
