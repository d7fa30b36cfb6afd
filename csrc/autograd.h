// The derivatives, registered under the Autograd key. They are in C++ because a Python registration takes more of the
// host's time, which is half of a call at 128 x 10 (benchmarks/results/loss_overhead.md). The templates take an
// operator's signature from its kernel.
#pragma once

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <functional>
#include <optional>
#include <tuple>

#include "arguments.h"
#include "ops.h"

namespace jocor_fast {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Calls an operator below autograd, but through the dispatcher, where torch.compile traces the call.
template <class Operator, class... Arguments>
auto call_below_autograd(const Operator& op, const Arguments&... arguments) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return op.call(arguments...);
}

// Whether autograd must see the call: the tensor requires a gradient, or has a tangent of forward-mode differentiation
// attached. That is unsupported, and autograd::Function says so; the operator itself would drop it silently.
inline bool needs_derivative(const Tensor& tensor) {
  return (at::GradMode::is_enabled() && tensor.requires_grad()) || tensor._fw_grad(/*level=*/0).defined();
}

template <class NoTensor>
bool needs_derivative(const NoTensor&) {
  return false;
}

inline const Tensor* tensor_in(const Tensor& tensor) { return tensor.defined() ? &tensor : nullptr; }
inline const Tensor* tensor_in(const std::optional<Tensor>& tensor) { return tensor ? tensor_in(*tensor) : nullptr; }
template <class NoTensor>
const Tensor* tensor_in(const NoTensor&) {
  return nullptr;
}

// Called before the dispatcher chooses a kernel: with tensors on two devices it would raise an error that names no
// argument, or choose the kernel for `meta`.
template <class Operator, class... Arguments>
void check_one_device(const Operator& op, const Tensor& first, const Arguments&... others) {
  size_t index = 0;
  const auto check = [&](const Tensor* tensor) {
    ++index;
    if (tensor == nullptr || tensor->device() == first.device()) return;
    const auto& arguments = op.schema().arguments();
    check_same_device(*tensor, arguments[index].name().c_str(), first, arguments[0].name().c_str());
  };
  (check(tensor_in(others)), ...);
}

inline variable_list as_list(const Tensor& result) { return {result}; }
inline variable_list as_list(const std::tuple<Tensor, Tensor>& result) {
  return {std::get<0>(result), std::get<1>(result)};
}

inline void from_list(const variable_list& list, Tensor& result) { result = list[0]; }
inline void from_list(const variable_list& list, std::tuple<Tensor, Tensor>& result) { result = {list[0], list[1]}; }

// A backward operator becomes a function of its own: a second derivative raises an error instead of coming out
// incomplete.
struct DifferentiableOnce : torch::autograd::Function<DifferentiableOnce> {
  template <class... Arguments>
  static variable_list forward(AutogradContext*, const std::function<variable_list()>& compute, const Arguments&...) {
    return compute();
  }

  static variable_list backward(AutogradContext*, const variable_list&) {
    TORCH_CHECK(false, "jocor_fast: this loss cannot be differentiated twice (create_graph=True)");
  }
};

template <class Result, class... Arguments>
void differentiable_once(torch::Library& library, const char* name, Result (*kernel)(Arguments...)) {
  library.impl(name, [op = operator_of(kernel, name)](Arguments... arguments) -> Result {
    if (!(needs_derivative(arguments) || ...)) return call_below_autograd(op, arguments...);
    const auto compute = [&] { return as_list(call_below_autograd(op, arguments...)); };
    Result result;
    from_list(DifferentiableOnce::apply(compute, arguments...), result);
    return result;
  });
}

// For an operator whose results are choices.
template <class Result, class... Arguments>
void not_differentiable(torch::Library& library, const char* name, Result (*kernel)(Arguments...)) {
  library.impl(name, [op = operator_of(kernel, name)](Arguments... arguments) -> Result {
    check_one_device(op, arguments...);
    return call_below_autograd(op, arguments...);
  });
}

}  // namespace jocor_fast
