// Step 1: the loss of every row and the four numbers that its gradient needs again.
//
// A row lies in the registers of part of a warp or of a warp and is read once; a row too long for that is looped over
// by a block, twice. Nothing is shared between rows, so no result depends on where a row lies in the batch.
#pragma once

#include "../joint_loss.h"
#include "../joint_loss_math.h"
#include "../labels.h"
#include "../ranked_rows.h"
#include "linked_launch.cuh"
#include "logits.cuh"
#include "reductions.cuh"
#include "row_mapping.h"
#include "row_vectors.cuh"

namespace jocor_fast::cuda {

template <class Real>
struct RowLoss {
  Real max1, max2;          // of the logits
  Real log_sum1, log_sum2;  // log sum exp(z - max): lse without its large part
  Real kl12, kl21, symmetric_kl;
  bool predictions_differ;
};

// One thread of those that share the row calls this.
template <class Logit>
__device__ __forceinline__ void write_row(const RowParams& params, int64_t row, const Label& label, const Logit* z1,
                                          const Logit* z2, const RowLoss<RealOf<Logit>>& result) {
  using Real = RealOf<Logit>;
  const Real nan = minus_infinity<Real>() - minus_infinity<Real>();
  Real loss1 = 0, loss2 = 0, joint = 0;
  if (label.valid) {
    // log_sum - (z_y - max) and not lse - z_y: the large numbers leave before the small ones are added
    loss1 = result.log_sum1 - (to_real(z1[label.value]) - result.max1);
    loss2 = result.log_sum2 - (to_real(z2[label.value]) - result.max2);
    joint = JointLoss<Real>(params.pair).of_row(loss1, loss2, result.symmetric_kl);
  } else if (!label.ignored) {
    loss1 = loss2 = joint = nan;
  }
  const Real log_sum1 = is_finite(joint) ? result.log_sum1 : nan;  // tells the gradient
  static_cast<RowStatistics<Real>*>(params.statistics)[row] = {log_sum1, result.log_sum2, result.kl12, result.kl21};
  static_cast<Real*>(params.per_sample)[row] = joint;
  if (params.cross_entropy1 != nullptr) static_cast<Real*>(params.cross_entropy1)[row] = loss1;
  if (params.cross_entropy2 != nullptr) static_cast<Real*>(params.cross_entropy2)[row] = loss2;
  if (params.row_state != nullptr) {
    params.row_state[row] =
        label.ignored ? kIneligible : (result.predictions_differ ? kEligibleAndPredictionsDiffer : kEligible);
  }
}

// Whether a column is a candidate for the arg-max: it holds the maximum, or it is column 0 and NaN, which nothing
// beats.
template <class Real>
__device__ __forceinline__ bool is_prediction(Real logit, Real max, int64_t column) {
  return logit == max || (column == 0 && logit != logit);
}

// --- rows in registers ----------------------------------------------------------------------------------------------

template <int lanes, int columns, int chunk, class Real>
__device__ __forceinline__ int prediction(const Real (&values)[columns], Real max, int lane) {
  int first = lanes * columns;
#pragma unroll
  for (int i = columns - 1; i >= 0; --i) {
    const int column = column_of<lanes, chunk>(lane, i);
    if (is_prediction(values[i], max, column)) first = column;
  }
  return reduce_lanes<lanes>(first, Min{});
}

template <class Logit, int lanes, int columns, int N>
__device__ __forceinline__ RowLoss<RealOf<Logit>> row_loss_in_registers(const LogitPair& pair, const Logit* z1,
                                                                        const Logit* z2, int lane,
                                                                        bool compare_predictions) {
  using Real = RealOf<Logit>;
  RowLoss<Real> row{};
  Real values1[columns], values2[columns];
  load_row<lanes, columns, kChunk<Logit>, N, /*whole_vectors=*/false>(z1, pair.classes, lane, values1);
  load_row<lanes, columns, kChunk<Logit>, N, /*whole_vectors=*/false>(z2, pair.classes, lane, values2);

  row.max1 = reduce_lanes<lanes>(largest(values1), Max{});
  row.max2 = reduce_lanes<lanes>(largest(values2), Max{});
  if (compare_predictions) {
    row.predictions_differ = prediction<lanes, columns, kChunk<Logit>>(values1, row.max1, lane) !=
                             prediction<lanes, columns, kChunk<Logit>>(values2, row.max2, lane);
  }

  // From here on a class is three numbers, of which its divergences are made: two exponentials and a difference.
  Real sum1 = 0, sum2 = 0, differences[columns];
#pragma unroll
  for (int i = 0; i < columns; ++i) {
    const Real shifted1 = values1[i] - row.max1, shifted2 = values2[i] - row.max2;
    differences[i] = shifted1 - shifted2;
    sum1 += values1[i] = exponential(shifted1);
    sum2 += values2[i] = exponential(shifted2);
  }
  sum1 = reduce_lanes<lanes>(sum1, Sum{});
  sum2 = reduce_lanes<lanes>(sum2, Sum{});
  row.log_sum1 = logarithm(sum1);
  row.log_sum2 = logarithm(sum2);
  if (pair.co_lambda == 0.0) return row;

  const JointLoss<Real> loss(pair);
  const Real scale1 = Real(1) / sum1, scale2 = Real(1) / sum2;
  const Real log_sum_difference = row.log_sum1 - row.log_sum2;
  Real kl[3] = {};
#pragma unroll
  for (int i = 0; i < columns; ++i) {
    loss.add_class(values1[i] * scale1, values2[i] * scale2, differences[i] - log_sum_difference, kl);
  }
  row.kl12 = reduce_lanes<lanes>(kl[0], Sum{});
  row.kl21 = reduce_lanes<lanes>(kl[1], Sum{});
  row.symmetric_kl = reduce_lanes<lanes>(kl[2], Sum{});
  return row;
}

// The rows of one round of a block, one for each group of lanes; `first_row` is the block's. The shuffles want every
// lane, so groups past the last row compute that one again and write nothing.
template <class Logit, int mapping_index, int N>
__device__ __forceinline__ void rows_of_block(const RowParams& params, int64_t first_row) {
  constexpr RowMapping mapping = kRowMappings[mapping_index];
  const LogitPair& pair = params.pair;
  const int lane = threadIdx.x % mapping.lanes;
  const int64_t row = first_row + threadIdx.x / mapping.lanes;
  const int64_t read_row = row < pair.rows ? row : pair.rows - 1;
  const Logit* z1 = first_logit1<Logit>(pair, read_row);
  const Logit* z2 = first_logit2<Logit>(pair, read_row);
  const PendingLabel label(pair, read_row);  // loaded with the logits; used when they are done
  const auto result =
      row_loss_in_registers<Logit, mapping.lanes, mapping.columns, N>(pair, z1, z2, lane, params.compare_predictions);
  if (lane == 0 && row < pair.rows) write_row(params, row, label.arrived(pair), z1, z2, result);
}

// Blocks per multiprocessor in the launch bounds: 4 x 128 threads leave 128 registers each, which float32 fills. Half
// precision, whose logits arrive packed and are widened when all have come, would spill.
template <class Logit>
constexpr int kLossBlocks = sizeof(Logit) == 4 ? 4 : 1;

template <class Logit, int mapping_index, int N>
__global__ void __launch_bounds__(kRowMappings[mapping_index].threads, kLossBlocks<Logit>)
    row_losses_in_registers(const __grid_constant__ RowParams params) {
  allow_next_kernel();
  const int64_t rows_per_block = blockDim.x / kRowMappings[mapping_index].lanes;
  const int64_t step = gridDim.x * rows_per_block;
  for (int64_t first = blockIdx.x * rows_per_block; first < params.pair.rows; first += step) {
    rows_of_block<Logit, mapping_index, N>(params, first);
  }
}

// --- a row looped over by a block -----------------------------------------------------------------------------------

// Sum of exponentials relative to the largest value seen: read once, kept in range by rescaling.
template <class Real>
struct RunningSum {
  Real max = minus_infinity<Real>();
  Real sum = 0;

  // What exponents are taken relative to: 0 while only -inf was seen, for -inf - -inf is NaN.
  __device__ __forceinline__ static Real origin(Real max) { return max == minus_infinity<Real>() ? Real(0) : max; }

  template <int count>
  __device__ __forceinline__ void add(const Real (&values)[count]) {
    rescale(larger(max, largest(values)));
#pragma unroll
    for (int i = 0; i < count; ++i) sum += exponential(values[i] - origin(max));
  }

  __device__ __forceinline__ void rescale(Real new_max) {
    if (new_max == max) return;
    sum *= exponential(max - new_max);
    max = new_max;
  }
};

template <class Real>
struct BlockScratch {
  Real sums[3 * kMaxWarps];
  int64_t columns[2 * kMaxWarps];
};

template <class Logit, int N>
__device__ __forceinline__ bool predictions_differ(const Logit* z1, const Logit* z2, int64_t classes,
                                                   const RowLoss<RealOf<Logit>>& row, int64_t* scratch) {
  constexpr int chunk = kChunk<Logit>;
  int64_t first[2] = {classes, classes};
  for_each_chunk<chunk, N>(z1, z2, classes, [&](int64_t column, const auto& values1, const auto& values2) {
#pragma unroll
    for (int i = 0; i < chunk; ++i) {
      if (is_prediction(values1[i], row.max1, column + i)) first[0] = Min{}(first[0], column + i);
      if (is_prediction(values2[i], row.max2, column + i)) first[1] = Min{}(first[1], column + i);
    }
  });
  reduce_block(first, classes, Min{}, scratch);
  return first[0] != first[1];
}

template <class Logit, int N>
__device__ __forceinline__ RowLoss<RealOf<Logit>> row_loss_of_block(const LogitPair& pair, const Logit* z1,
                                                                    const Logit* z2, bool compare_predictions,
                                                                    BlockScratch<RealOf<Logit>>& scratch) {
  using Real = RealOf<Logit>;
  constexpr int chunk = kChunk<Logit>;
  const int64_t classes = pair.classes;
  RowLoss<Real> row{};
  RunningSum<Real> running1, running2;
  for_each_chunk<chunk, N>(z1, z2, classes, [&](int64_t, const auto& values1, const auto& values2) {
    running1.add(values1);
    running2.add(values2);
  });
  Real max[2] = {running1.max, running2.max};
  reduce_block(max, minus_infinity<Real>(), Max{}, scratch.sums);
  row.max1 = max[0];
  row.max2 = max[1];
  running1.rescale(row.max1);
  running2.rescale(row.max2);
  Real sum[2] = {running1.sum, running2.sum};
  reduce_block(sum, Real(0), Sum{}, scratch.sums);
  row.log_sum1 = logarithm(sum[0]);
  row.log_sum2 = logarithm(sum[1]);
  if (compare_predictions) row.predictions_differ = predictions_differ<Logit, N>(z1, z2, classes, row, scratch.columns);
  if (pair.co_lambda == 0.0) return row;

  const JointLoss<Real> loss(pair);
  const Real scale1 = Real(1) / sum[0], scale2 = Real(1) / sum[1];
  const Real log_sum_difference = row.log_sum1 - row.log_sum2;
  Real kl[3] = {};
  for_each_chunk<chunk, N>(z1, z2, classes, [&](int64_t, const auto& values1, const auto& values2) {
#pragma unroll
    for (int i = 0; i < chunk; ++i) {
      const Real shifted1 = values1[i] - row.max1, shifted2 = values2[i] - row.max2;
      loss.add_class(exponential(shifted1) * scale1, exponential(shifted2) * scale2,
                     (shifted1 - shifted2) - log_sum_difference, kl);
    }
  });
  reduce_block(kl, Real(0), Sum{}, scratch.sums);
  row.kl12 = kl[0];
  row.kl21 = kl[1];
  row.symmetric_kl = kl[2];
  return row;
}

template <class Logit, int N>
__global__ void __launch_bounds__(kBlockRowThreads) row_losses_by_block(const __grid_constant__ RowParams params) {
  __shared__ BlockScratch<RealOf<Logit>> scratch;
  allow_next_kernel();
  const LogitPair& pair = params.pair;
  for (int64_t row = blockIdx.x; row < pair.rows; row += gridDim.x) {
    const Logit* z1 = first_logit1<Logit>(pair, row);
    const Logit* z2 = first_logit2<Logit>(pair, row);
    const auto result = row_loss_of_block<Logit, N>(pair, z1, z2, params.compare_predictions, scratch);
    if (threadIdx.x == 0) write_row(params, row, read_label(pair, row), z1, z2, result);
  }
}

}  // namespace jocor_fast::cuda
