// The operators on sparse rows in CSR form (starts int32 [rows + 1], columns int32, values float32): how they are made
// and taken from a matrix, the first layer of the perceptrons, the gradient of its weight, and Adam on the rows of that
// weight. On the CPU; the trainer makes the derivatives of its layers itself. Their schemas stand at the end.
#include "sparse_linear.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "autograd.h"
#include "steps.h"

namespace jocor_fast {
namespace {

// Splits `rows` rows or groups between the threads. If a tile of the weight, which has `inputs` rows, stays in the
// cache, a thread has the same columns in every operator: split by rows, two cores would read what the other has
// written, and Adam took longer with two threads than with one. A larger weight is split by rows, which are read whole.
template <class Work>
void share_out(int64_t rows, int64_t inputs, int64_t width, int64_t numbers_a_row, const Work& work) {
  const int64_t useful = std::max<int64_t>(1, rows * numbers_a_row / kNumbersPerThread);
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), useful);
  const int64_t tiles = tile_stays_in_cache(inputs) ? (width + kTileWidth - 1) / kTileWidth : 1;
  const int64_t across = std::clamp<int64_t>(threads, 1, std::max<int64_t>(1, tiles)), down = threads / across;
  const auto column = [&](int64_t part) { return part == across ? width : tiles * part / across * kTileWidth; };
  at::parallel_for(0, across * down, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t of_columns = part / down, of_rows = part % down;
      work(Share{rows * of_rows / down, rows * (of_rows + 1) / down, column(of_columns), column(of_columns + 1)});
    }
  });
}

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

// Every index is checked here: a wrong one would be read outside the weight.
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

// The entries that are not 0 of dense rows [N, D], uint8 or float32 -> starts, columns, and values times `scale`
std::tuple<Tensor, Tensor, Tensor> rows_without_zeros(const Tensor& inputs, double scale) {
  TORCH_CHECK_VALUE(
      inputs.dim() == 2 && inputs.is_contiguous() && inputs.size(1) <= std::numeric_limits<int32_t>::max(),
      "inputs must be contiguous, [N, D] with D < 2^31, got shape ", inputs.sizes());
  const int64_t count = inputs.size(0), width = inputs.size(1);
  Tensor starts = at::empty({count + 1}, inputs.options().dtype(at::kInt));
  int32_t* ends = starts.mutable_data_ptr<int32_t>();
  const auto take = [&](const auto* numbers) {
    split_rows(count, width, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        int32_t found = 0;
        for (int64_t j = 0; j < width; ++j) found += numbers[i * width + j] != 0;
        ends[i + 1] = found;
      }
    });
    int64_t total = ends[0] = 0;
    for (int64_t i = 0; i < count; ++i) {
      total += ends[i + 1];
      TORCH_CHECK_VALUE(total <= std::numeric_limits<int32_t>::max(), "inputs must have less than 2^31 entries");
      ends[i + 1] = static_cast<int32_t>(total);
    }
    Tensor columns = at::empty({total}, starts.options());
    Tensor values = at::empty({total}, inputs.options().dtype(at::kFloat));
    int32_t* column = columns.mutable_data_ptr<int32_t>();
    float* value = values.mutable_data_ptr<float>();
    split_rows(count, width, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t place = ends[i];
        for (int64_t j = 0; j < width; ++j) {
          if (numbers[i * width + j] == 0) continue;
          column[place] = static_cast<int32_t>(j);
          value[place++] = static_cast<float>(numbers[i * width + j]) * static_cast<float>(scale);
        }
      }
    });
    return std::tuple{starts, columns, values};
  };
  if (inputs.scalar_type() == at::kByte) return take(inputs.const_data_ptr<uint8_t>());
  TORCH_CHECK_TYPE(inputs.scalar_type() == at::kFloat, "inputs must be uint8 or float32, got ", dtype_name(inputs));
  return take(inputs.const_data_ptr<float>());
}

// The rows int64 [R] of a matrix, in this order -> starts int32 [R + 1], columns and values
std::tuple<Tensor, Tensor, Tensor> sparse_rows(const Tensor& starts, const Tensor& columns, const Tensor& values,
                                               const Tensor& rows) {
  check_tensor(starts, "starts", at::kInt, 1);
  check_tensor(columns, "columns", at::kInt, 1);
  check_tensor(values, "values", at::kFloat, 1);
  check_tensor(rows, "rows", at::kLong, 1);
  const int64_t count = starts.size(0) - 1, entries = columns.size(0), taken = rows.size(0);
  TORCH_CHECK_VALUE(values.size(0) == entries, "values must have shape [", entries, "], got ", values.sizes());
  const int32_t* first = starts.const_data_ptr<int32_t>();
  const int64_t* chosen = rows.const_data_ptr<int64_t>();
  Tensor new_starts = at::empty({taken + 1}, starts.options());
  int32_t* ends = new_starts.mutable_data_ptr<int32_t>();
  int64_t end = ends[0] = 0;
  for (int64_t r = 0; r < taken; ++r) {
    TORCH_CHECK_VALUE(chosen[r] >= 0 && chosen[r] < count, "rows must lie in [0, ", count, "), got ", chosen[r]);
    const int64_t begin = first[chosen[r]], length = first[chosen[r] + 1] - begin;
    TORCH_CHECK_VALUE(begin >= 0 && length >= 0 && begin + length <= entries,
                      "starts must ascend from 0 to the number of columns");
    end += length;
    TORCH_CHECK_VALUE(end <= std::numeric_limits<int32_t>::max(), "the rows must have less than 2^31 entries");
    ends[r + 1] = static_cast<int32_t>(end);
  }
  Tensor new_columns = at::empty({end}, columns.options()), new_values = at::empty({end}, values.options());
  const int32_t* column = columns.const_data_ptr<int32_t>();
  const float* value = values.const_data_ptr<float>();
  int32_t* new_column = new_columns.mutable_data_ptr<int32_t>();
  float* new_value = new_values.mutable_data_ptr<float>();
  for (int64_t r = 0; r < taken; ++r) {
    const int64_t begin = first[chosen[r]], length = ends[r + 1] - ends[r];
    std::copy_n(column + begin, length, new_column + ends[r]);
    std::copy_n(value + begin, length, new_value + ends[r]);
  }
  return {new_starts, new_columns, new_values};
}

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
  const SparseLinearParams params{rows,
                                  weight.const_data_ptr<float>(),
                                  bias.const_data_ptr<float>(),
                                  outputs.mutable_data_ptr<float>(),
                                  weight.size(0),
                                  width};
  const int64_t numbers_a_row = width * (1 + columns.size(0) / std::max<int64_t>(1, count));
  share_out(count, weight.size(0), width, numbers_a_row,
            [&](const Share& share) { cpu::sparse_linear(params, share); });
  return outputs;
}

namespace {

// The entries of some rows, grouped by column, each column's in the order of the rows: the order of a sum does not
// depend on the number of threads. The columns come in the order in which they first occur.
struct Groups {
  std::vector<int32_t> columns, starts{0}, rows;
  std::vector<float> values;

  int64_t count() const { return static_cast<int64_t>(columns.size()); }
  SparseGradientParams params(const Tensor& grad, float* gradients) const {
    return {starts.data(), rows.data(), values.data(), grad.const_data_ptr<float>(), gradients, grad.size(1)};
  }
};

// grad [R, width] belongs to the rows int64 [R] of a matrix of `inputs` columns.
Groups group_by_column(const Tensor& starts, const Tensor& columns, const Tensor& values, const Tensor& rows,
                       const Tensor& grad, int64_t inputs) {
  check_width(grad, "grad");
  check_tensor(rows, "rows", at::kLong, 1);
  const SparseRows input = check_rows(starts, columns, values, inputs);
  const int64_t count = rows.size(0);
  TORCH_CHECK_VALUE(count == grad.size(0), "rows must have shape [", grad.size(0), "], got ", rows.sizes());
  const int64_t* chosen = rows.const_data_ptr<int64_t>();
  for (int64_t r = 0; r < count; ++r) {
    TORCH_CHECK_VALUE(chosen[r] >= 0 && chosen[r] < starts.size(0) - 1, "rows must lie in [0, ", starts.size(0) - 1,
                      "), got ", chosen[r]);
  }
  Groups groups;
  std::vector<int32_t> places(inputs);  // of each column: how many entries, then where its next one goes
  int32_t entries = 0;
  for (int64_t r = 0; r < count; ++r) {
    const int32_t begin = input.starts[chosen[r]], end = input.starts[chosen[r] + 1];
    for (int32_t e = begin; e < end; ++e) {
      if (places[input.columns[e]]++ == 0) groups.columns.push_back(input.columns[e]);
    }
    entries += end - begin;
  }
  groups.starts.reserve(groups.count() + 1);
  for (const int32_t column : groups.columns) {
    const int32_t start = groups.starts.back();
    groups.starts.push_back(start + places[column]);
    places[column] = start;
  }
  groups.rows.resize(entries);
  groups.values.resize(entries);
  int32_t* const rows_to = groups.rows.data();
  float* const values_to = groups.values.data();
  for (int64_t r = 0; r < count; ++r) {
    for (int32_t e = input.starts[chosen[r]]; e < input.starts[chosen[r] + 1]; ++e) {
      const int32_t place = places[input.columns[e]]++;
      rows_to[place] = static_cast<int32_t>(r);
      values_to[place] = input.values[e];
    }
  }
  return groups;
}

// `steps` float64 [S, 3] are the AdamSteps so far.
SparseAdamParams adam_params(const Tensor& weight, const Tensor& moments, const Tensor& squares, const Tensor& seen,
                             const Tensor& current, const Tensor& steps, double beta2, double epsilon) {
  check_width(weight, "weight");
  const int64_t inputs = weight.size(0);
  for (const auto& [tensor, name] : {std::pair(moments, "moments"), std::pair(squares, "squares")}) {
    check_tensor(tensor, name, at::kFloat, 2);
    TORCH_CHECK_VALUE(tensor.sizes() == weight.sizes(), name, " must have shape ", weight.sizes(), " like weight, got ",
                      tensor.sizes());
  }
  const auto step = static_cast<int32_t>(steps.size(0));
  for (const auto& [tensor, name] : {std::pair(seen, "seen"), std::pair(current, "current")}) {
    check_tensor(tensor, name, at::kInt, 1);
    TORCH_CHECK_VALUE(tensor.size(0) == inputs, name, " must have shape [", inputs, "], got ", tensor.sizes());
    const int32_t* numbers = tensor.const_data_ptr<int32_t>();
    uint32_t largest = 0;
    for (int64_t i = 0; i < inputs; ++i) largest = std::max(largest, static_cast<uint32_t>(numbers[i]));
    TORCH_CHECK_VALUE(largest <= static_cast<uint32_t>(step), name, " must lie in [0, ", step, "], the steps so far");
  }
  check_tensor(steps, "steps", at::kDouble, 2);
  TORCH_CHECK_VALUE(steps.size(1) == 3, "steps must have shape [steps, 3], got ", steps.sizes());
  return {weight.mutable_data_ptr<float>(),
          moments.mutable_data_ptr<float>(),
          squares.mutable_data_ptr<float>(),
          seen.mutable_data_ptr<int32_t>(),
          current.mutable_data_ptr<int32_t>(),
          static_cast<const AdamStep*>(steps.const_data_ptr()),
          step,
          beta2,
          static_cast<float>(epsilon),
          weight.size(1)};
}

}  // namespace

// -> the columns int64 [U] that the rows have, in the order in which they first occur, and the gradients [U, width] of
// those rows of the weight. grad [R, width] belongs to the input's rows `rows`, int64 [R]; the others have none.
std::tuple<Tensor, Tensor> sparse_linear_gradient(const Tensor& starts, const Tensor& columns, const Tensor& values,
                                                  const Tensor& rows, const Tensor& grad, int64_t inputs) {
  const Groups groups = group_by_column(starts, columns, values, rows, grad, inputs);
  Tensor found = at::empty({groups.count()}, rows.options());
  Tensor gradients = at::empty({groups.count(), grad.size(1)}, grad.options());
  std::copy(groups.columns.begin(), groups.columns.end(), found.mutable_data_ptr<int64_t>());
  const SparseGradientParams params = groups.params(grad, gradients.mutable_data_ptr<float>());
  share_out(groups.count(), inputs, params.width, 4 * params.width,
            [&](const Share& share) { cpu::sparse_gradients(params, share); });
  return {found, gradients};
}

// A step of Adam (torch.optim.Adam), the last of `steps`, in place on a weight [inputs, width]. Its gradient is what
// sparse_linear_gradient would return for these rows; it is not stored.
void sparse_adam_step_(const Tensor& weight, const Tensor& moments, const Tensor& squares, const Tensor& seen,
                       const Tensor& current, const Tensor& steps, const Tensor& starts, const Tensor& columns,
                       const Tensor& values, const Tensor& rows, const Tensor& grad, double beta2, double epsilon) {
  const SparseAdamParams params = adam_params(weight, moments, squares, seen, current, steps, beta2, epsilon);
  TORCH_CHECK_VALUE(params.step > 0, "steps must have at least one row");
  const Groups groups = group_by_column(starts, columns, values, rows, grad, weight.size(0));
  TORCH_CHECK_VALUE(grad.size(1) == params.width, "grad must have ", params.width, " columns, got ", grad.size(1));
  const SparseGradientParams gradient = groups.params(grad, nullptr);
  SparseAdamParams before = params;
  before.step = params.step - 1;
  share_out(groups.count(), weight.size(0), params.width, 4 * params.width, [&](const Share& share) {
    cpu::sparse_adam_catch_up(before, groups.columns.data(), share);
    cpu::sparse_adam_step(params, gradient, groups.columns.data(), share);
  });
  for (const int32_t column : groups.columns) params.seen[column] = params.current[column] = params.step;
}

// Make the deferred updates of the rows int32, which may repeat; of all rows if undefined.
void sparse_adam_catch_up_(const Tensor& weight, const Tensor& moments, const Tensor& squares, const Tensor& seen,
                           const Tensor& current, const Tensor& steps, const std::optional<Tensor>& rows, double beta2,
                           double epsilon) {
  const SparseAdamParams params = adam_params(weight, moments, squares, seen, current, steps, beta2, epsilon);
  const int64_t inputs = weight.size(0);
  std::vector<int32_t> due;
  if (rows.has_value()) {
    check_tensor(*rows, "rows", at::kInt, 1);
    const int32_t* listed = rows->const_data_ptr<int32_t>();
    const int64_t count = rows->size(0);
    uint32_t largest = 0;
    for (int64_t i = 0; i < count; ++i) largest = std::max(largest, static_cast<uint32_t>(listed[i]));
    TORCH_CHECK_VALUE(count == 0 || largest < inputs, "rows must lie in [0, ", inputs, ")");
    std::vector<uint8_t> is_due(inputs);
    for (int64_t row = 0; row < inputs; ++row) is_due[row] = params.current[row] < params.step;
    for (int64_t i = 0; i < count; ++i) {
      if (is_due[listed[i]]) due.push_back(listed[i]);
      is_due[listed[i]] = 0;
    }
  } else {
    for (int64_t row = 0; row < inputs; ++row) {
      if (params.current[row] < params.step) due.push_back(static_cast<int32_t>(row));
    }
  }
  share_out(static_cast<int64_t>(due.size()), inputs, params.width, 4 * params.width,
            [&](const Share& share) { cpu::sparse_adam_catch_up(params, due.data(), share); });
  for (const int32_t row : due) params.current[row] = params.step;
}

TORCH_LIBRARY_FRAGMENT(jocor_fast, m) {
  const auto def = [&](const char* schema) { m.def(schema, {at::Tag::pt2_compliant_tag}); };
  def("rows_without_zeros(Tensor inputs, float scale) -> (Tensor starts, Tensor columns, Tensor values)");
  def("sparse_rows(Tensor starts, Tensor columns, Tensor values, Tensor rows) -> "
      "(Tensor starts, Tensor columns, Tensor values)");
  def("sparse_linear(Tensor starts, Tensor columns, Tensor values, Tensor weight, Tensor bias) -> Tensor");
  def("sparse_linear_gradient(Tensor starts, Tensor columns, Tensor values, Tensor rows, Tensor grad, int inputs) -> "
      "(Tensor columns, Tensor gradients)");
  def("sparse_adam_step_(Tensor(a!) weight, Tensor(b!) moments, Tensor(c!) squares, Tensor(d!) seen, "
      "Tensor(e!) current, Tensor steps, Tensor starts, Tensor columns, Tensor values, Tensor rows, Tensor grad, "
      "float beta2, float epsilon) -> ()");
  def("sparse_adam_catch_up_(Tensor(a!) weight, Tensor(b!) moments, Tensor(c!) squares, Tensor(d!) seen, "
      "Tensor(e!) current, Tensor steps, Tensor? rows, float beta2, float epsilon) -> ()");
}

TORCH_LIBRARY_IMPL(jocor_fast, CPU, m) {
  m.impl("rows_without_zeros", &rows_without_zeros);
  m.impl("sparse_rows", &sparse_rows);
  m.impl("sparse_linear", &sparse_linear);
  m.impl("sparse_linear_gradient", &sparse_linear_gradient);
  m.impl("sparse_adam_step_", &sparse_adam_step_);
  m.impl("sparse_adam_catch_up_", &sparse_adam_catch_up_);
}

}  // namespace jocor_fast
