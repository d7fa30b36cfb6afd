// What the derivatives share: operators called below autograd, and the refusal of a second derivative.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <functional>

#include "operator_handle.h"

namespace jocor_fast {

// An operator called below autograd, through the dispatcher: torch.compile traces the call.
template <class Operator, class... Arguments>
auto call_below_autograd(const Operator& op, const Arguments&... arguments) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return op.call(arguments...);
}

// Also where a tangent of forward-mode differentiation is attached: autograd::Function refuses it, where the operator
// itself would drop it in silence.
inline bool needs_derivative(const at::Tensor& tensor) {
  return (at::GradMode::is_enabled() && tensor.requires_grad()) || tensor._fw_grad(/*level=*/0).defined();
}

// A backward operator is a function of its own, so that a second derivative is refused and not silently incomplete.
struct DifferentiableOnce : torch::autograd::Function<DifferentiableOnce> {
  using variable_list = torch::autograd::variable_list;

  // grad and logits: what the gradients that `compute` returns depend on.
  static variable_list forward(torch::autograd::AutogradContext*, const at::Tensor&, const at::Tensor&,
                               const at::Tensor&, const std::function<variable_list()>& compute) {
    return compute();
  }

  static variable_list backward(torch::autograd::AutogradContext*, const variable_list&) {
    TORCH_CHECK(false, "jocor_fast: this loss cannot be differentiated twice (create_graph=True)");
  }
};

}  // namespace jocor_fast
