// The derivatives, registered under the Autograd key: a C++ autograd::Function costs a quarter of a Python registration
// at 128 x 10 (host time 3.9 against 14.9 us forward). The templates take an operator's signature from its kernel.
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

// An operator called below autograd, through the dispatcher: torch.compile traces the call.
template <class Operator, class... Arguments>
auto call_below_autograd(const Operator& op, const Arguments&... arguments) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return op.call(arguments...);
}

// Also where a tangent of forward-mode differentiation is attached: autograd::Function refuses it, where the operator
// itself would drop it silently.
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

// Before the dispatcher chooses a device's kernel: it would complain in terms of its own, or choose `meta`.
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

// A backward operator is a function of its own: a second derivative is refused and not silently incomplete.
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

// An operator whose results are choices.
template <class Result, class... Arguments>
void not_differentiable(torch::Library& library, const char* name, Result (*kernel)(Arguments...)) {
  library.impl(name, [op = operator_of(kernel, name)](Arguments... arguments) -> Result {
    check_one_device(op, arguments...);
    return call_below_autograd(op, arguments...);
  });
}

}  // namespace jocor_fast
