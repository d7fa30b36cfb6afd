// The operators on sparse rows in CSR form (starts int32 [rows + 1], columns int32, values float32): the first layer of
// the perceptrons, the gradient of its weight, and Adam on the rows of that weight. On the CPU; the trainer makes the
// derivatives of its layers itself. Their schemas stand at the end.
#include "sparse_linear.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "autograd.h"

namespace jocor_fast {
namespace {

constexpr int64_t kNumbersPerThread = 32768;  // of float32 to read or write, about: see split_rows

void check_tensor(const Tensor& tensor, const char* name, at::ScalarType type, int64_t dims) {
  TORCH_CHECK_TYPE(tensor.scalar_type() == type, name, " must be of type ", type, ", got ", dtype_name(tensor));
  TORCH_CHECK_VALUE(tensor.dim() == dims && tensor.is_contiguous(), name, " must be contiguous, of ", dims,
                    " dimensions, got shape ", tensor.sizes());
}

void check_width(const Tensor& weight, const char* name) {
  check_tensor(weight, name, at::kFloat, 2);
  TORCH_CHECK_VALUE(weight.size(1) % kWidthUnit == 0, name, " must have a multiple of ", kWidthUnit, " columns, got ",
                    weight.size(1));
}

// Every index is checked here: a row of the weight that is not there would be read.
SparseRows check_rows(const Tensor& starts, const Tensor& columns, const Tensor& values, int64_t inputs) {
  check_tensor(starts, "starts", at::kInt, 1);
  check_tensor(columns, "columns", at::kInt, 1);
  check_tensor(values, "values", at::kFloat, 1);
  const SparseRows rows{starts.const_data_ptr<int32_t>(), columns.const_data_ptr<int32_t>(),
                        values.const_data_ptr<float>()};
  const int64_t count = starts.size(0) - 1, entries = columns.size(0);
  const bool sound = count >= 0 && rows.starts[0] == 0 && rows.starts[count] == entries && values.size(0) == entries &&
                     std::is_sorted(rows.starts, rows.starts + count + 1);
  TORCH_CHECK_VALUE(sound, "starts must ascend from 0 to the number of columns and values, got ", entries, " and ",
                    values.size(0));
  uint32_t largest = 0;
  for (int64_t e = 0; e < entries; ++e) largest = std::max(largest, static_cast<uint32_t>(rows.columns[e]));
  TORCH_CHECK_VALUE(entries == 0 || largest < inputs, "columns must lie in [0, ", inputs, ")");
  return rows;
}

}  // namespace

// -> [rows, width]
Tensor sparse_linear(const Tensor& starts, const Tensor& columns, const Tensor& values, const Tensor& weight,
                     const Tensor& bias) {
  check_width(weight, "weight");
  const int64_t width = weight.size(1);
  check_tensor(bias, "bias", at::kFloat, 1);
  TORCH_CHECK_VALUE(bias.size(0) == width, "bias must have shape [", width, "], got ", bias.sizes());
  const SparseRows rows = check_rows(starts, columns, values, weight.size(0));
  const int64_t count = starts.size(0) - 1;
  Tensor outputs = at::empty({count, width}, weight.options());
  const SparseLinearParams params{rows, weight.const_data_ptr<float>(), bias.const_data_ptr<float>(),
                                  outputs.mutable_data_ptr<float>(), width};
  const int64_t numbers_a_row = width * (1 + columns.size(0) / std::max<int64_t>(1, count));
  at::parallel_for(0, count, std::max<int64_t>(1, kNumbersPerThread / std::max<int64_t>(1, numbers_a_row)),
                   [&](int64_t begin, int64_t end) { cpu::sparse_linear(params, begin, end); });
  return outputs;
}

// -> the columns int64 [U] that the rows have, in the order in which they first occur, and the gradients [U, width] of
// those rows of the weight. grad [R, width] belongs to the input's rows `rows`, int64 [R]; the others have none.
std::tuple<Tensor, Tensor> sparse_linear_gradient(const Tensor& starts, const Tensor& columns, const Tensor& values,
                                                  const Tensor& rows, const Tensor& grad, int64_t inputs) {
  check_width(grad, "grad");
  check_tensor(rows, "rows", at::kLong, 1);
  const SparseRows input = check_rows(starts, columns, values, inputs);
  const int64_t width = grad.size(1), count = rows.size(0);
  TORCH_CHECK_VALUE(count == grad.size(0), "rows must have shape [", grad.size(0), "], got ", rows.sizes());
  const int64_t* chosen = rows.const_data_ptr<int64_t>();
  for (int64_t r = 0; r < count; ++r) {
    TORCH_CHECK_VALUE(chosen[r] >= 0 && chosen[r] < starts.size(0) - 1, "rows must lie in [0, ", starts.size(0) - 1,
                      "), got ", chosen[r]);
  }

  // The entries by column, each column's in the order of the rows: a sum has one order with any number of threads.
  const Tensor group_of_column = at::zeros({inputs}, starts.options());  // from 1; 0: no entry
  int32_t* group_of = group_of_column.mutable_data_ptr<int32_t>();
  std::vector<int32_t> group_starts{0}, group_columns;
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t e = input.starts[chosen[r]]; e < input.starts[chosen[r] + 1]; ++e) {
      int32_t& group = group_of[input.columns[e]];
      if (group == 0) {
        group_columns.push_back(input.columns[e]);
        group_starts.push_back(0);
        group = static_cast<int32_t>(group_columns.size());
      }
      ++group_starts[group];
    }
  }
  const int64_t groups = static_cast<int64_t>(group_columns.size());
  for (int64_t u = 0; u < groups; ++u) group_starts[u + 1] += group_starts[u];
  std::vector<int32_t> next(group_starts.begin(), group_starts.end() - 1), entry_rows(group_starts.back());
  std::vector<float> entry_values(entry_rows.size());
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t e = input.starts[chosen[r]]; e < input.starts[chosen[r] + 1]; ++e) {
      const int32_t place = next[group_of[input.columns[e]] - 1]++;
      entry_rows[place] = static_cast<int32_t>(r);
      entry_values[place] = input.values[e];
    }
  }

  Tensor found = at::empty({groups}, rows.options()), gradients = at::empty({groups, width}, grad.options());
  std::copy(group_columns.begin(), group_columns.end(), found.mutable_data_ptr<int64_t>());
  const SparseGradientParams params{group_starts.data(),
                                    entry_rows.data(),
                                    entry_values.data(),
                                    grad.const_data_ptr<float>(),
                                    gradients.mutable_data_ptr<float>(),
                                    width};
  at::parallel_for(0, groups, std::max<int64_t>(1, kNumbersPerThread / std::max<int64_t>(1, 2 * width)),
                   [&](int64_t begin, int64_t end) { cpu::sparse_gradients(params, begin, end); });
  return {found, gradients};
}

// Adam (torch.optim.Adam) in place on a weight [inputs, width]. `steps` float64 [S, 3] are the AdamSteps so far.
//
// With gradients [U, width], of the rows int64 [U] (each once): takes step S. Without, the rows (each any number of
// times; all of them where undefined) make the updates that they have deferred.
void sparse_adam_(const Tensor& weight, const Tensor& moments, const Tensor& squares, const Tensor& seen,
                  const Tensor& current, const Tensor& steps, const std::optional<Tensor>& rows,
                  const std::optional<Tensor>& gradients, double beta2, double epsilon) {
  check_width(weight, "weight");
  const int64_t inputs = weight.size(0), width = weight.size(1);
  for (const auto& [tensor, name] : {std::pair(moments, "moments"), std::pair(squares, "squares")}) {
    check_tensor(tensor, name, at::kFloat, 2);
    TORCH_CHECK_VALUE(tensor.sizes() == weight.sizes(), name, " must have shape ", weight.sizes(), " like weight, got ",
                      tensor.sizes());
  }
  for (const auto& [tensor, name] : {std::pair(seen, "seen"), std::pair(current, "current")}) {
    check_tensor(tensor, name, at::kInt, 1);
    TORCH_CHECK_VALUE(tensor.size(0) == inputs, name, " must have shape [", inputs, "], got ", tensor.sizes());
  }
  check_tensor(steps, "steps", at::kDouble, 2);
  TORCH_CHECK_VALUE(steps.size(1) == 3, "steps must have shape [steps, 3], got ", steps.sizes());
  const auto step = static_cast<int32_t>(steps.size(0));
  const int32_t *seen_data = seen.const_data_ptr<int32_t>(), *current_data = current.const_data_ptr<int32_t>();
  SparseAdamParams params{weight.mutable_data_ptr<float>(),
                          moments.mutable_data_ptr<float>(),
                          squares.mutable_data_ptr<float>(),
                          seen.mutable_data_ptr<int32_t>(),
                          current.mutable_data_ptr<int32_t>(),
                          static_cast<const AdamStep*>(steps.const_data_ptr()),
                          step,
                          beta2,
                          static_cast<float>(epsilon),
                          width};
  const auto check_row = [&](int64_t row) {
    TORCH_CHECK_VALUE(row >= 0 && row < inputs, "rows must lie in [0, ", inputs, "), got ", row);
    TORCH_CHECK_VALUE(seen_data[row] >= 0 && current_data[row] <= step && seen_data[row] <= step,
                      "seen and current must lie in [0, ", step, "], the number of steps");
  };
  const int64_t rows_per_thread = std::max<int64_t>(1, kNumbersPerThread / std::max<int64_t>(1, 4 * width));
  if (!rows.has_value()) {
    for (int64_t row = 0; row < inputs; ++row) check_row(row);
    at::parallel_for(0, inputs, rows_per_thread, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) cpu::sparse_adam_catch_up(params, row);
    });
    return;
  }
  if (!gradients.has_value()) {
    check_tensor(*rows, "rows", at::kInt, 1);
    const int32_t* listed = rows->const_data_ptr<int32_t>();
    for (int64_t i = 0; i < rows->size(0); ++i) check_row(listed[i]);
    // Each thread goes through the list for the rows that are its own: a row may be listed more than once.
    const int64_t threads = rows->size(0) <= rows_per_thread ? 1 : at::get_num_threads();
    at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = 0; i < rows->size(0); ++i) {
        const int64_t owner = listed[i] % threads;
        if (owner >= begin && owner < end) cpu::sparse_adam_catch_up(params, listed[i]);
      }
    });
    return;
  }
  check_tensor(*rows, "rows", at::kLong, 1);
  check_tensor(*gradients, "gradients", at::kFloat, 2);
  TORCH_CHECK_VALUE(step > 0 && gradients->size(0) == rows->size(0) && gradients->size(1) == width,
                    "gradients must have shape [", rows->size(0), ", ", width, "], got ", gradients->sizes());
  const int64_t* listed = rows->const_data_ptr<int64_t>();
  for (int64_t i = 0; i < rows->size(0); ++i) check_row(listed[i]);
  const float* values = gradients->const_data_ptr<float>();
  SparseAdamParams before = params;
  before.step = step - 1;
  at::parallel_for(0, rows->size(0), rows_per_thread, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      cpu::sparse_adam_catch_up(before, listed[i]);
      cpu::sparse_adam_step(params, listed[i], values + i * width);
    }
  });
}

TORCH_LIBRARY_FRAGMENT(jocor_fast, m) {
  const auto def = [&](const char* schema) { m.def(schema, {at::Tag::pt2_compliant_tag}); };
  def("sparse_linear(Tensor starts, Tensor columns, Tensor values, Tensor weight, Tensor bias) -> Tensor");
  def("sparse_linear_gradient(Tensor starts, Tensor columns, Tensor values, Tensor rows, Tensor grad, int inputs) -> "
      "(Tensor columns, Tensor gradients)");
  def("sparse_adam_(Tensor(a!) weight, Tensor(b!) moments, Tensor(c!) squares, Tensor(d!) seen, Tensor(e!) current, "
      "Tensor steps, Tensor? rows, Tensor? gradients, float beta2, float epsilon) -> ()");
}

TORCH_LIBRARY_IMPL(jocor_fast, CPU, m) {
  m.impl("sparse_linear", &sparse_linear);
  m.impl("sparse_linear_gradient", &sparse_linear_gradient);
  m.impl("sparse_adam_", &sparse_adam_);
}

}  // namespace jocor_fast
