// The operators of the robust losses of one network (joint_loss_math.h: RobustLoss), and their derivatives.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cmath>
#include <limits>

#include "arguments.h"
#include "autograd.h"
#include "joint_loss.h"
#include "ops.h"
#include "steps.h"

namespace jocor_fast {
namespace {

// Logits that the kernels can read, and the tensor that owns their memory.
struct CheckedLogits {
  Tensor owner;
  Logits logits;

  CheckedLogits(const Tensor& given, const Tensor& target, std::optional<int64_t> ignore_index) {
    logits.type = logit_type(given, "logits");
    check_logits(given, "logits");
    check_target(target, given, "logits");
    owner = with_contiguous_columns(given);
    logits.logits = owner.const_data_ptr();
    logits.row_stride = owner.stride(0);
    set_labels(logits, given, target, ignore_index);
  }
};

RobustSettings check_settings(int64_t kind, double a, double b) {
  TORCH_CHECK_VALUE(kind >= 0 && kind < kRobustKinds, "kind must lie in [0, ", kRobustKinds, "), got ", kind);
  const RobustSettings settings{static_cast<RobustKind>(kind), a, b};
  const bool is_gce = settings.kind == RobustKind::gce;
  TORCH_CHECK_VALUE(is_gce ? a > 0 && a <= 1 : a >= 0 && std::isfinite(a), "a must lie in ",
                    is_gce ? "(0, 1]" : "[0, inf)", ", got ", a);
  TORCH_CHECK_VALUE(b >= 0 && std::isfinite(b), "b must lie in [0, inf), got ", b);
  return settings;
}

}  // namespace

// With `mean` the loss is the mean over the rows that are selected: those with a finite loss, with `sieve` only those
// of them in the sieve. Without, it is the loss of each row, and nothing is selected: the other tensors are empty.
RobustLossResult robust_loss(const Tensor& logits, const Tensor& target, std::optional<int64_t> ignore_index,
                             int64_t kind, double a, double b, bool sieve, bool mean) {
  const CheckedLogits checked(logits, target, ignore_index);
  const int64_t rows = checked.logits.rows;
  const auto real = logits.options().dtype(real_type(logits)), count = target.options().dtype(at::kLong);
  Tensor per_sample = at::empty({rows}, real), statistics = at::empty({rows, 4}, real);
  RobustRowParams row_params{};
  row_params.logits = checked.logits;
  row_params.settings = check_settings(kind, a, b);
  row_params.per_sample = per_sample.mutable_data_ptr();
  row_params.statistics = statistics.mutable_data_ptr();
  row_params.sieve = sieve;
  const auto mask = target.options().dtype(at::kBool);
  if (!mean) {
    if (rows > 0) on_device_of(target, [&](const auto& steps) { steps.robust_losses(row_params); });
    return {per_sample, at::empty({0}, real), at::empty({0}, mask), at::empty({0}, count), at::empty({0}, count),
            statistics};
  }
  Tensor loss = at::empty({}, real), selected = at::empty({rows}, mask);
  Tensor num_selected = at::empty({}, count), num_nonfinite = at::empty({}, count);
  row_params.row_state = static_cast<uint8_t*>(selected.mutable_data_ptr());  // the selection reads, then replaces it

  SelectionParams selection{};
  selection.is_double = per_sample.scalar_type() == at::kDouble;
  selection.rows = rows;
  selection.losses = row_params.per_sample;
  selection.row_state = row_params.row_state;
  selection.disagreement = sieve ? Disagreement::required : Disagreement::ignored;
  selection.num_keep = std::numeric_limits<int64_t>::max();
  selection.selected = row_params.row_state;
  selection.num_selected = num_selected.mutable_data_ptr<int64_t>();
  selection.num_nonfinite = num_nonfinite.mutable_data_ptr<int64_t>();
  selection.mean_of = row_params.per_sample;
  selection.mean = loss.mutable_data_ptr();
  if (rows == 0) {  // nothing is launched
    for (Tensor* number : {&loss, &num_selected, &num_nonfinite}) number->zero_();
  } else {
    on_device_of(target, [&](const auto& steps) { steps.robust_losses_and_selection(row_params, selection); });
  }
  return {loss, per_sample, selected, num_selected, num_nonfinite, statistics};
}

namespace {

// -> [B, C] in the logits' type. grad is that of the mean (0-d), or of each row's loss [B].
Tensor robust_loss_backward(const Tensor& grad, const Tensor& logits, const Tensor& target,
                            std::optional<int64_t> ignore_index, const Tensor& statistics,
                            const std::optional<Tensor>& selected, const std::optional<Tensor>& num_selected) {
  const CheckedLogits checked(logits, target, ignore_index);
  const Tensor saved = as_saved(statistics), chosen = as_saved(selected), number = as_saved(num_selected);
  check_backward(grad, saved, logits);
  Tensor gradient = at::empty(logits.sizes(), logits.options().memory_format(std::nullopt));
  RobustGradientParams params{};
  params.logits = checked.logits;
  params.statistics = saved.const_data_ptr();
  params.grad_output = grad.const_data_ptr();
  params.grad_stride = grad.dim() == 0 ? 0 : grad.stride(0);
  if (chosen.defined()) params.selected = static_cast<const uint8_t*>(chosen.const_data_ptr());
  if (number.defined()) params.num_selected = number.const_data_ptr<int64_t>();
  params.grad = gradient.mutable_data_ptr();
  if (checked.logits.rows > 0) on_device_of(target, [&](const auto& steps) { steps.robust_gradients(params); });
  return gradient;
}

// Only the loss is an output of the function: `result` was computed before, below autograd.
struct RobustGradient : torch::autograd::Function<RobustGradient> {
  static variable_list forward(AutogradContext* ctx, const Tensor& logits, const Tensor& target,
                               std::optional<int64_t> ignore_index, const RobustLossResult& result, bool mean) {
    const auto& [loss, per_sample, selected, num_selected, num_nonfinite, statistics] = result;
    ctx->save_for_backward({logits, target, statistics, mean ? selected : Tensor(), mean ? num_selected : Tensor()});
    ctx->saved_data["ignore_index"] = ignore_index;
    ctx->set_materialize_grads(false);
    return {loss};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    static const auto op = operator_of(robust_loss_backward, "robust_loss_backward");
    const auto saved = ctx->get_saved_variables();
    variable_list gradients(5);
    if (!grads[0].defined()) return gradients;
    const auto rows = [&](size_t i) { return saved[i].defined() ? std::optional(saved[i]) : std::nullopt; };
    const auto ignore_index = ctx->saved_data["ignore_index"].toOptional<int64_t>();
    gradients[0] = op.call(grads[0], saved[0], saved[1], ignore_index, saved[2], rows(3), rows(4));
    return gradients;
  }
};

RobustLossResult robust_loss_autograd(const Tensor& logits, const Tensor& target, std::optional<int64_t> ignore_index,
                                      int64_t kind, double a, double b, bool sieve, bool mean) {
  static const auto op = operator_of(robust_loss, "robust_loss");
  check_one_device(op, logits, target);
  auto result = call_below_autograd(op, logits, target, ignore_index, kind, a, b, sieve, mean);
  if (needs_derivative(logits)) {
    std::get<0>(result) = RobustGradient::apply(logits, target, ignore_index, result, mean)[0];
  }
  return result;
}

void register_kernels(torch::Library& m) {
  m.impl("robust_loss", &robust_loss);
  m.impl("robust_loss_backward", &robust_loss_backward);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(jocor_fast, m) {
  const auto def = [&](const char* schema) { m.def(schema, {at::Tag::pt2_compliant_tag}); };
  def("robust_loss(Tensor logits, Tensor target, int? ignore_index, int kind, float a, float b, bool sieve, "
      "bool mean) -> (Tensor loss, Tensor per_sample, Tensor selected, Tensor num_selected, Tensor num_nonfinite, "
      "Tensor statistics)");
  def("robust_loss_backward(Tensor grad, Tensor logits, Tensor target, int? ignore_index, Tensor statistics, "
      "Tensor? selected, Tensor? num_selected) -> Tensor");
}
TORCH_LIBRARY_IMPL(jocor_fast, CPU, m) { register_kernels(m); }
#ifdef JOCOR_FAST_CUDA
TORCH_LIBRARY_IMPL(jocor_fast, CUDA, m) { register_kernels(m); }
#endif
TORCH_LIBRARY_IMPL(jocor_fast, Autograd, m) {
  m.impl("robust_loss", &robust_loss_autograd);
  differentiable_once(m, "robust_loss_backward", &robust_loss_backward);
}

}  // namespace jocor_fast
