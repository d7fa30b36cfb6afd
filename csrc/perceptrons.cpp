// The backward pass of a layer of one or two equal perceptrons (engine/paired_mlp.py), for the rows that have a
// gradient: some half of a batch whose wrong labels are left out. The products are torch's; what lies between them is
// here because a call from Python for each part would take longer than the part. On the CPU.
#include <ATen/core/Tensor.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/threshold_backward.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "autograd.h"
#include "steps.h"

namespace jocor_fast {
namespace {

void check_block(const Tensor& tensor, const char* name, at::IntArrayRef sizes) {
  TORCH_CHECK_TYPE(tensor.scalar_type() == at::kFloat, name, " must be float32, got ", dtype_name(tensor));
  TORCH_CHECK_VALUE(tensor.sizes() == sizes && (tensor.size(-1) <= 1 || tensor.stride(-1) == 1), name,
                    " must have shape ", sizes, " and contiguous rows, got shape ", tensor.sizes(), " and strides ",
                    tensor.strides());
}

// The rows of [networks, rows, width] in which some network has a number that is not 0 (NaN counts).
std::vector<int64_t> rows_with_gradient(const Tensor& gradient) {
  const int64_t networks = gradient.size(0), count = gradient.size(1), width = gradient.size(2);
  const float* numbers = gradient.const_data_ptr<float>();
  std::vector<int64_t> found;
  for (int64_t i = 0; i < count; ++i) {
    bool some = false;
    for (int64_t k = 0; k < networks && !some; ++k) {
      const float* row = numbers + k * gradient.stride(0) + i * gradient.stride(1);
      some = std::any_of(row, row + width, [](float number) { return number != 0; });
    }
    if (some) found.push_back(i);
  }
  return found;
}

// Some rows of [networks, rows, width], contiguous.
Tensor take_rows(const Tensor& from, const std::vector<int64_t>& rows) {
  const int64_t networks = from.size(0), width = from.size(2), taken = static_cast<int64_t>(rows.size());
  Tensor to = at::empty({networks, taken, width}, from.options());
  const float* source = from.const_data_ptr<float>();
  float* place = to.mutable_data_ptr<float>();
  split_rows(networks * taken, 2 * width, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t network = i / taken, row = rows[i % taken];
      std::copy_n(source + network * from.stride(0) + row * from.stride(1), width, place + i * width);
    }
  });
  return to;
}

}  // namespace

// gradient [K, B, O], of the outputs of a layer whose inputs [K, B, H] are outputs of a ReLU, weight [K, O, H] -> the
// rows int64 [R] that have a gradient, and the gradient [R, width] of what that ReLU was given: network k's H numbers
// stand from k · H, zeros from K · H. The gradients of weight and bias, sums over the rows, are written to the other
// two.
std::tuple<Tensor, Tensor> perceptron_gradients(const Tensor& gradient, const Tensor& inputs, const Tensor& weight,
                                                const Tensor& weight_gradient, const Tensor& bias_gradient,
                                                int64_t width) {
  TORCH_CHECK_VALUE(gradient.dim() == 3 && inputs.dim() == 3, "gradient and inputs must have 3 dimensions, got shapes ",
                    gradient.sizes(), " and ", inputs.sizes());
  const int64_t networks = gradient.size(0), count = gradient.size(1), outputs = gradient.size(2);
  const int64_t hidden = inputs.size(2), filled = networks * hidden;
  check_block(gradient, "gradient", gradient.sizes());
  check_block(inputs, "inputs", {networks, count, hidden});
  for (const auto& [tensor, name] : {std::pair(weight, "weight"), std::pair(weight_gradient, "weight_gradient")}) {
    check_block(tensor, name, {networks, outputs, hidden});
  }
  check_block(bias_gradient, "bias_gradient", {networks, 1, outputs});
  TORCH_CHECK_VALUE(width >= filled, "width must be at least ", filled, ", got ", width);

  const std::vector<int64_t> found = rows_with_gradient(gradient);
  const auto taken = static_cast<int64_t>(found.size());
  Tensor rows = at::empty({taken}, gradient.options().dtype(at::kLong));
  std::copy(found.begin(), found.end(), rows.mutable_data_ptr<int64_t>());
  const Tensor kept_gradient = taken < count ? take_rows(gradient, found) : gradient;
  const Tensor kept_inputs = taken < count ? take_rows(inputs, found) : inputs;
  Tensor weight_sums = weight_gradient, bias_sums = bias_gradient;
  at::bmm_out(weight_sums, kept_gradient.transpose(1, 2), kept_inputs);
  at::sum_out(bias_sums, kept_gradient, 1, /*keepdim=*/true);
  Tensor joined = at::empty({taken, width}, gradient.options());
  joined.narrow(1, filled, width - filled).zero_();
  Tensor by_network = joined.as_strided({networks, taken, hidden}, {hidden, width, 1});
  at::threshold_backward_out(by_network, at::bmm(kept_gradient, weight), kept_inputs, 0);
  return {rows, joined};
}

TORCH_LIBRARY_FRAGMENT(jocor_fast, m) {
  m.def(
      "perceptron_gradients(Tensor gradient, Tensor inputs, Tensor weight, Tensor(a!) weight_gradient, "
      "Tensor(b!) bias_gradient, int width) -> (Tensor rows, Tensor gradients)",
      {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(jocor_fast, CPU, m) { m.impl("perceptron_gradients", &perceptron_gradients); }

}  // namespace jocor_fast
