// The derivatives, registered under the Autograd key: a C++ autograd::Function costs a quarter of a Python
// registration at 128 x 10 (host time 3.9 against 14.9 us forward). All losses share one backward operator.
#include "autograd.h"

#include <torch/library.h>

#include "arguments.h"
#include "ops.h"

namespace jocor_fast {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What the backward passes need again beside their tensors.
void save_settings(AutogradContext* ctx, double co_lambda, std::optional<int64_t> ignore_index) {
  ctx->saved_data["co_lambda"] = co_lambda;
  ctx->saved_data["ignore_index"] = ignore_index;
  ctx->set_materialize_grads(false);
}

struct RowChoice {
  std::optional<Tensor> selected, num_selected;
};

// Gradients of both logits, each network's from the rows that train it; undefined where not needed.
std::tuple<Tensor, Tensor> backward_of_logits(AutogradContext* ctx, const Tensor& grad, const variable_list& saved,
                                              const Tensor& statistics, const RowChoice& rows1,
                                              const RowChoice& rows2) {
  static const auto op = operator_handle<decltype(joint_loss_backward)>("jocor_fast::joint_loss_backward");
  const bool needs1 = ctx->needs_input_grad(0), needs2 = ctx->needs_input_grad(1);
  if (!grad.defined()) return {};
  auto [grad1, grad2] = op.call(grad, saved[0], saved[1], saved[2], statistics, rows1.selected, rows1.num_selected,
                                rows2.selected, rows2.num_selected, ctx->saved_data["co_lambda"].toDouble(),
                                ctx->saved_data["ignore_index"].toOptional<int64_t>(), needs1, needs2);
  return {needs1 ? grad1 : Tensor(), needs2 ? grad2 : Tensor()};
}

// Only the loss is an output of the function, for each output costs autograd its bookkeeping, and torch's compiled
// autograd takes none that has no derivative: `result` was computed before, below autograd. The losses below alike.
struct JocorLoss : torch::autograd::Function<JocorLoss> {
  static variable_list forward(AutogradContext* ctx, const Tensor& logits1, const Tensor& logits2, const Tensor& target,
                               double co_lambda, std::optional<int64_t> ignore_index, const JocorLossResult& result) {
    const auto& [loss, per_sample, selected, num_selected, num_nonfinite, statistics] = result;
    ctx->save_for_backward({logits1, logits2, target, statistics, selected, num_selected});
    save_settings(ctx, co_lambda, ignore_index);
    return {loss};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const RowChoice rows{saved[4], saved[5]};
    auto [grad1, grad2] = backward_of_logits(ctx, grads[0], saved, saved[3], rows, rows);
    return {grad1, grad2, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

struct CoteachingLoss : torch::autograd::Function<CoteachingLoss> {
  static variable_list forward(AutogradContext* ctx, const Tensor& logits1, const Tensor& logits2, const Tensor& target,
                               std::optional<int64_t> ignore_index, const CoteachingLossResult& result) {
    const auto& [loss, per_sample1, per_sample2, selected1, selected2, num_selected1, num_selected2, num_nonfinite,
                 statistics] = result;
    ctx->save_for_backward({logits1, logits2, target, statistics, selected1, num_selected1, selected2, num_selected2});
    save_settings(ctx, /*co_lambda=*/0.0, ignore_index);
    return {loss};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const RowChoice choice1{saved[4], saved[5]}, choice2{saved[6], saved[7]};
    auto [grad1, grad2] = backward_of_logits(ctx, grads[0], saved, saved[3], choice2, choice1);  // the other's choice
    return {grad1, grad2, Tensor(), Tensor(), Tensor()};
  }
};

struct JointLoss : torch::autograd::Function<JointLoss> {
  static variable_list forward(AutogradContext* ctx, const Tensor& logits1, const Tensor& logits2, const Tensor& target,
                               double co_lambda, std::optional<int64_t> ignore_index,
                               const std::tuple<Tensor, Tensor>& result) {
    const auto& [per_sample, statistics] = result;
    ctx->save_for_backward({logits1, logits2, target, statistics});
    save_settings(ctx, co_lambda, ignore_index);
    return {per_sample};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    auto [grad1, grad2] = backward_of_logits(ctx, grads[0], saved, saved[3], {}, {});
    return {grad1, grad2, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

bool any_needs_gradient(const Tensor& logits1, const Tensor& logits2) {
  return needs_derivative(logits1) || needs_derivative(logits2);
}

JocorLossResult jocor_loss_autograd(const Tensor& logits1, const Tensor& logits2, const Tensor& target,
                                    double co_lambda, std::optional<double> forget_rate,
                                    std::optional<c10::SymInt> num_keep, const std::optional<Tensor>& num_keep_tensor,
                                    std::optional<int64_t> ignore_index) {
  static const auto op = operator_handle<JocorLossOperator>("jocor_fast::jocor_loss");
  check_one_device(logits1, logits2, target);
  auto result = call_below_autograd(op, logits1, logits2, target, co_lambda, forget_rate, num_keep, num_keep_tensor,
                                    ignore_index);
  if (any_needs_gradient(logits1, logits2)) {
    std::get<0>(result) = JocorLoss::apply(logits1, logits2, target, co_lambda, ignore_index, result)[0];
  }
  return result;
}

JocorLossResult decoupling_loss_autograd(const Tensor& logits1, const Tensor& logits2, const Tensor& target,
                                         std::optional<int64_t> ignore_index) {
  static const auto op = operator_handle<decltype(decoupling_loss)>("jocor_fast::decoupling_loss");
  check_one_device(logits1, logits2, target);
  auto result = call_below_autograd(op, logits1, logits2, target, ignore_index);
  if (any_needs_gradient(logits1, logits2)) {
    std::get<0>(result) = JocorLoss::apply(logits1, logits2, target, /*co_lambda=*/0.0, ignore_index, result)[0];
  }
  return result;
}

CoteachingLossResult coteaching_loss_autograd(const Tensor& logits1, const Tensor& logits2, const Tensor& target,
                                              std::optional<double> forget_rate,
                                              const std::optional<Tensor>& forget_rate_tensor,
                                              std::optional<c10::SymInt> num_keep,
                                              const std::optional<Tensor>& num_keep_tensor, bool round_down,
                                              bool disagreement, std::optional<int64_t> ignore_index) {
  static const auto op = operator_handle<CoteachingLossOperator>("jocor_fast::coteaching_loss");
  check_one_device(logits1, logits2, target);
  auto result = call_below_autograd(op, logits1, logits2, target, forget_rate, forget_rate_tensor, num_keep,
                                    num_keep_tensor, round_down, disagreement, ignore_index);
  if (any_needs_gradient(logits1, logits2)) {
    std::get<0>(result) = CoteachingLoss::apply(logits1, logits2, target, ignore_index, result)[0];
  }
  return result;
}

std::tuple<Tensor, Tensor> joint_loss_autograd(const Tensor& logits1, const Tensor& logits2, const Tensor& target,
                                               double co_lambda, std::optional<int64_t> ignore_index) {
  static const auto op = operator_handle<decltype(joint_loss)>("jocor_fast::joint_loss");
  check_one_device(logits1, logits2, target);
  auto result = call_below_autograd(op, logits1, logits2, target, co_lambda, ignore_index);
  if (any_needs_gradient(logits1, logits2)) {
    std::get<0>(result) = JointLoss::apply(logits1, logits2, target, co_lambda, ignore_index, result)[0];
  }
  return result;
}

Tensor select_small_loss_autograd(const Tensor& losses, std::optional<c10::SymInt> num_keep,
                                  const std::optional<Tensor>& num_keep_tensor, const std::optional<Tensor>& eligible) {
  static const auto op = operator_handle<Tensor(const Tensor&, std::optional<c10::SymInt>, const std::optional<Tensor>&,
                                                const std::optional<Tensor>&)>("jocor_fast::select_small_loss");
  if (eligible.has_value()) check_beside(*eligible, "eligible", losses, "losses");
  return call_below_autograd(op, losses, num_keep, num_keep_tensor, eligible);  // a choice has no derivative
}

std::tuple<Tensor, Tensor> joint_loss_backward_autograd(
    const Tensor& grad, const Tensor& logits1, const Tensor& logits2, const Tensor& target, const Tensor& statistics,
    const std::optional<Tensor>& selected1, const std::optional<Tensor>& num_selected1,
    const std::optional<Tensor>& selected2, const std::optional<Tensor>& num_selected2, double co_lambda,
    std::optional<int64_t> ignore_index, bool needs_grad1, bool needs_grad2) {
  static const auto op = operator_handle<decltype(joint_loss_backward)>("jocor_fast::joint_loss_backward");
  const auto compute = [&] {
    return call_below_autograd(op, grad, logits1, logits2, target, statistics, selected1, num_selected1, selected2,
                               num_selected2, co_lambda, ignore_index, needs_grad1, needs_grad2);
  };
  if (!any_needs_gradient(logits1, logits2) && !needs_derivative(grad)) return compute();
  auto out = DifferentiableOnce::apply(grad, logits1, logits2, [&]() -> variable_list {
    auto [grad1, grad2] = compute();
    return {grad1, grad2};
  });
  return {out[0], out[1]};
}

}  // namespace

TORCH_LIBRARY_IMPL(jocor_fast, Autograd, m) {
  m.impl("jocor_loss", &jocor_loss_autograd);
  m.impl("decoupling_loss", &decoupling_loss_autograd);
  m.impl("coteaching_loss", &coteaching_loss_autograd);
  m.impl("joint_loss", &joint_loss_autograd);
  m.impl("select_small_loss", &select_small_loss_autograd);
  m.impl("joint_loss_backward", &joint_loss_backward_autograd);
}

}  // namespace jocor_fast
