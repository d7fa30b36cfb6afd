// A linear layer on sparse rows, and Adam on the few rows of its weight that a step has a gradient for. No torch.
//
// The weight is stored [inputs, width]: the weights that one input is multiplied with are contiguous. `width`, the
// number of outputs, is a multiple of kWidthUnit: no kernel has a tail.
#pragma once

#include <cstdint>

namespace jocor_fast {

constexpr int64_t kWidthUnit = 16;  // floats: the widest vector
constexpr int64_t kTileWidth = 48;  // columns of the weight that are summed at once; a multiple of kWidthUnit

// Whether a tile of the weight, all its rows, stays in a core's L2 cache.
inline bool tile_stays_in_cache(int64_t inputs) {
  return inputs * kTileWidth * static_cast<int64_t>(sizeof(float)) <= 1 << 19;
}

// One thread's part of an operator: its rows or groups begin … end − 1, in the columns first … last − 1 of the
// weight, multiples of kWidthUnit.
struct Share {
  int64_t begin, end;
  int64_t first, last;
};

// Rows in CSR form: row i has the entries starts[i] … starts[i + 1] − 1.
struct SparseRows {
  const int32_t* starts;
  const int32_t* columns;
  const float* values;
};

// inputs: the rows of the weight. outputs[i] = bias + sum of values[e] * weight[columns[e]] over the entries e of row
// i.
struct SparseLinearParams {
  SparseRows input;
  const float* weight;
  const float* bias;  // [width]
  float* outputs;
  int64_t inputs;
  int64_t width;
};

// gradients[u] = sum of values[e] * grad[rows[e]] over the entries e of group u, starts[u] … starts[u + 1] − 1. A group
// holds the entries of one column.
struct SparseGradientParams {
  const int32_t* starts;
  const int32_t* rows;
  const float* values;
  const float* grad;
  float* gradients;
  int64_t width;
};

// The factors of one step of Adam; kept for every step since the first. A row without a gradient defers its updates:
// they follow from these numbers and from its moments, which only decay, when the row is next read.
struct AdamStep {
  double beta1;
  double rate;  // lr / (1 − beta1^s)
  double root;  // 1 / sqrt(1 − beta2^s)
};

// For every row, the last step whose gradient is in its moments (0: none yet, its moments are 0), and the last step
// whose update is in its parameters.
struct SparseAdamParams {
  float* parameters;
  float* moments;
  float* squares;
  int32_t* seen;
  int32_t* current;
  const AdamStep* steps;  // steps[s − 1] is step s
  int32_t step;           // the latest one
  double beta2;
  float epsilon;
  int64_t width;
};

namespace cpu {

void sparse_linear(const SparseLinearParams& params, const Share& share);
void sparse_gradients(const SparseGradientParams& params, const Share& share);
// Make the deferred updates, up to params.step, of the rows rows[begin … end − 1], no row twice. It is for the caller
// to note in params.current that they are made, once all columns have them.
void sparse_adam_catch_up(const SparseAdamParams& params, const int32_t* rows, const Share& share);
// Take params.step for the rows columns[u], with the gradients of the groups, which are not stored. The rows must have
// made their updates up to the step before; it is for the caller to note that they have taken this one.
void sparse_adam_step(const SparseAdamParams& params, const SparseGradientParams& gradient, const int32_t* columns,
                      const Share& share);

}  // namespace cpu
}  // namespace jocor_fast
