// The way past the dispatcher for the common call: plain tensors on the CPU, no mode, no transform. The gradients of a
// small batch are computed with its loss, while its logits are in the cache, and the backward pass returns them.
#pragma once

#include <ATen/SavedTensorHooks.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/ones.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>

#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include "autograd.h"

namespace jocor_fast {

// Whether the dispatcher would do no more with these tensors than call autograd's kernel and the CPU's.
template <class... Tensors>
bool plain_on_cpu(const Tensors&... tensors) {
  constexpr c10::DispatchKeySet of_no_account = c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                                c10::autocast_dispatch_keyset |
                                                c10::DispatchKeySet(c10::DispatchKey::BackendSelect);
  c10::DispatchKeySet keys = c10::impl::tls_local_dispatch_key_set().included_;
  const auto add = [&](const Tensor* tensor) {
    if (tensor != nullptr) keys = keys | tensor->key_set();
  };
  (add(tensor_in(tensors)), ...);
  return keys - of_no_account == c10::DispatchKeySet(c10::DispatchKey::CPU) && !at::hasCallbacks();
}

// With more logits, the gradients are left to the backward pass: the fixed costs of a call matter little there, and
// gradients that may never be asked for would take memory and time.
constexpr int64_t kMostLogitsOfReady = 32768;

// Not for half types: their gradients must be multiplied by the upstream one, the scale of a loss, before they are
// rounded; small ones would become 0.
inline bool gradients_may_be_ready(const Tensor& logits) {
  return (logits.scalar_type() == at::kFloat || logits.scalar_type() == at::kDouble) &&
         logits.numel() <= kMostLogitsOfReady;
}

// The gradient times `factor`. Zeros, as in rows that do not train, stay zeros even where the factor is infinite or
// NaN.
inline Tensor scaled(const Tensor& gradient, double factor) {
  Tensor result = new_tensor(gradient.sizes(), gradient.scalar_type(), gradient);
  const auto scale = [&](auto type) {
    using Real = decltype(type);
    const Real* from = gradient.const_data_ptr<Real>();
    Real* to = result.mutable_data_ptr<Real>();
    const Real by = static_cast<Real>(factor);
    for (int64_t i = 0, count = gradient.numel(); i < count; ++i) to[i] = from[i] != Real(0) ? from[i] * by : Real(0);
  };
  gradient.scalar_type() == at::kDouble ? scale(double{}) : scale(float{});
  return result;
}

// The value of a 0-d tensor.
inline double value_of(const Tensor& number) {
  if (!plain_on_cpu(number)) return number.item<double>();
  return number.scalar_type() == at::kDouble ? *number.const_data_ptr<double>() : *number.const_data_ptr<float>();
}

// Returns the stored gradients of a 0-d loss with respect to both logits, times the upstream gradient. Both are stored
// even if one network is frozen; the backward pass returns those that are needed.
struct ReadyGradients : torch::autograd::Function<ReadyGradients> {
  using Needed = std::array<bool, 2>;

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return from_upstream(*ctx, grads[0], {ctx->needs_input_grad(0), ctx->needs_input_grad(1)}, false);
  }

  // `may_take`: whether the graph is freed afterwards.
  static variable_list from_upstream(AutogradContext& ctx, const Tensor& grad, Needed needed, bool may_take) {
    if (!grad.defined()) return variable_list(2);
    // logits1, logits2 and target, by which torch notices that one was changed in place, gradient1, gradient2
    const variable_list saved = ctx.get_saved_variables();
    const double factor = value_of(grad);
    const auto times_factor = [&](const Tensor& gradient) {
      // two references: that of the saved variable, which is released after this, and that in `saved`
      const bool take = may_take && factor == 1.0 && gradient.use_count() == 2;
      return take ? gradient : scaled(gradient.contiguous(), factor);
    };
    variable_list results;
    if (at::GradMode::is_enabled()) {  // create_graph=True
      const auto both = [&] { return variable_list{times_factor(saved[3]), times_factor(saved[4])}; };
      results = DifferentiableOnce::apply(both, grad, saved[0], saved[1]);
    } else {
      results = {needed[0] ? times_factor(saved[3]) : Tensor(), needed[1] ? times_factor(saved[4]) : Tensor()};
    }
    for (size_t i = 0; i < 2; ++i) {
      if (!needed[i]) results[i].reset();
    }
    return results;
  }
};

// Makes a node. torch holds its nodes by an intrusive pointer, older releases by a shared one.
template <class Made, class Pointer = std::remove_cvref_t<decltype(std::declval<const Tensor&>().grad_fn())>>
Pointer new_node(Made*& made) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    const std::shared_ptr<Made> node(new Made(), [](auto* pointer) { deleteNode(pointer); });
    made = node.get();
    return node;
  } else {
    auto node = c10::make_intrusive<Made>();
    made = node.get();
    return node;
  }
}

// The node of ReadyGradients, without what Function::apply stores and CppNode::apply looks up for functions in general.
// Compiled autograd takes it for an ordinary node of ReadyGradients.
struct ReadyNode final : torch::autograd::CppNode<ReadyGradients> {
  variable_list apply(variable_list&& grads) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return ReadyGradients::from_upstream(ctx_, grads[0], {task_should_compute_output(0), task_should_compute_output(1)},
                                         !torch::autograd::get_current_graph_task_keep_graph());
  }
  std::string name() const override { return "JocorFastReadyGradients"; }
};

inline void attach_ready_gradients(const Tensor& loss, const Tensor& logits1, const Tensor& logits2,
                                   const Tensor& target, const Tensor& gradient1, const Tensor& gradient2) {
  ReadyNode* made = nullptr;
  const auto node = new_node(made);
  made->set_next_edges(torch::autograd::collect_next_edges(logits1, logits2));
  made->set_ctx_grad_fn(node);
  made->is_variable_input_ = {true, true};
  made->ctx_.set_materialize_grads(false);
  made->ctx_.save_for_backward({logits1, logits2, target, gradient1, gradient2});
  torch::autograd::set_history(loss, node);
  made->save_variables_to_ctx();
}

}  // namespace jocor_fast
