// The operators of forward correction (Patrini et al., CVPR 2017), -log((p T)[y]) of each row, and their derivatives:
// on the CPU the kernels of joint_loss.h, elsewhere torch's operators.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "arguments.h"
#include "autograd.h"
#include "joint_loss.h"
#include "ops.h"
#include "steps.h"

namespace jocor_fast {
namespace {

void check_corrected(const Tensor& logits, const Tensor& target, const Tensor& log_transition_t) {
  logit_type(logits, "logits");
  check_logits(logits, "logits");
  check_target(target, logits, "logits");
  const int64_t classes = logits.size(1);
  TORCH_CHECK_VALUE(log_transition_t.sizes() == at::IntArrayRef({classes, classes}), "transition must have shape [",
                    classes, ", ", classes, "], got ", log_transition_t.sizes());
  check_same_device(log_transition_t, "transition", logits, "logits");
}

// --- on the CPU -----------------------------------------------------------------------------------------------------

// Logits that the kernels can read, and the tensors that own their memory.
struct CheckedLogits {
  Tensor logits, log_transition_t;
  CorrectedLogits corrected;

  CheckedLogits(const Tensor& given, const Tensor& target, const Tensor& log_transition_t_given)
      : logits(with_contiguous_columns(given)),
        log_transition_t(log_transition_t_given.to(real_type(given)).contiguous()) {
    corrected.type = logit_type(logits, "logits");
    corrected.logits = logits.const_data_ptr();
    corrected.row_stride = logits.stride(0);
    corrected.log_transition_t = log_transition_t.const_data_ptr();
    set_labels(corrected, logits, target, std::nullopt);
  }
};

// The mean of all rows, and how many are not finite.
template <class Real>
void summarise(const Tensor& per_sample, const Tensor& mean, const Tensor& num_nonfinite) {
  const Real* const losses = per_sample.const_data_ptr<Real>();
  const int64_t rows = per_sample.numel();
  double sum = 0;
  int64_t nonfinite = 0;
  for (int64_t row = 0; row < rows; ++row) {
    sum += losses[row];
    nonfinite += !std::isfinite(losses[row]);
  }
  const double divisor = static_cast<double>(std::max<int64_t>(rows, 1));
  if (mean.defined()) *mean.mutable_data_ptr<Real>() = static_cast<Real>(sum / divisor);
  *num_nonfinite.mutable_data_ptr<int64_t>() = nonfinite;
}

ForwardCorrectedResult losses_on_cpu(const Tensor& logits, const Tensor& target, const Tensor& log_transition_t,
                                     bool mean) {
  const int64_t rows = logits.size(0);
  const auto real = logits.options().dtype(real_type(logits));
  const CheckedLogits checked(logits, target, log_transition_t);
  Tensor per_sample = at::empty({rows}, real), statistics = at::empty({rows, 4}, real);
  Tensor loss = mean ? at::empty({}, real) : Tensor();
  Tensor num_nonfinite = at::empty({}, target.options().dtype(at::kLong));
  CorrectedRowParams params{checked.corrected, per_sample.mutable_data_ptr(), statistics.mutable_data_ptr()};
  split_labelled_rows(checked.corrected,
                      [&](int64_t begin, int64_t end) { return cpu::corrected_losses(params, begin, end); });
  AT_DISPATCH_FLOATING_TYPES(per_sample.scalar_type(), "forward_corrected_loss",
                             [&] { summarise<scalar_t>(per_sample, loss, num_nonfinite); });
  if (!mean) return {per_sample, at::empty({0}, real), num_nonfinite, statistics};
  return {loss, per_sample, num_nonfinite, statistics};
}

Tensor gradient_on_cpu(const Tensor& grad, const Tensor& logits, const Tensor& target, const Tensor& log_transition_t,
                       const Tensor& statistics, double scale) {
  const CheckedLogits checked(logits, target, log_transition_t);
  const Tensor saved = as_saved(statistics);
  check_backward(grad, saved, logits);
  Tensor gradient = at::empty(logits.sizes(), logits.options().memory_format(std::nullopt));
  CorrectedGradientParams params{checked.corrected,
                                 saved.const_data_ptr(),
                                 grad.const_data_ptr(),
                                 grad.dim() == 0 ? 0 : grad.stride(0),
                                 scale,
                                 gradient.mutable_data_ptr()};
  split_rows(logits.size(0), checked.corrected.classes,
             [&](int64_t begin, int64_t end) { cpu::corrected_gradients(params, begin, end); });
  return gradient;
}

// --- elsewhere ------------------------------------------------------------------------------------------------------

// log T[i, y] of each row's label y and the classes i. An invalid label, which the host cannot see without waiting for
// the device, is replaced by some class.
Tensor log_columns(const Tensor& logits, const Tensor& target, const Tensor& log_transition_t) {
  return log_transition_t.to(real_type(logits)).index_select(0, target.to(at::kLong).clamp(0, logits.size(1) - 1));
}

ForwardCorrectedResult losses_elsewhere(const Tensor& logits, const Tensor& target, const Tensor& log_transition_t,
                                        bool mean) {
  const Tensor z = logits.to(real_type(logits)), labels = target.to(at::kLong);
  const Tensor losses = (z.log_softmax(1) + log_columns(logits, target, log_transition_t)).logsumexp(1).neg_();
  const Tensor valid = labels.ge(0).logical_and_(labels.lt(logits.size(1)));
  const Tensor per_sample = at::where(valid, losses, std::numeric_limits<double>::quiet_NaN());
  const Tensor finite = per_sample.isfinite(), num_nonfinite = finite.logical_not().sum();
  if (!mean) return {per_sample, at::empty({0}, per_sample.options()), num_nonfinite, finite};
  return {per_sample.sum().div_(std::max<int64_t>(logits.size(0), 1)), per_sample, num_nonfinite, finite};
}

Tensor gradient_elsewhere(const Tensor& grad, const Tensor& logits, const Tensor& target,
                          const Tensor& log_transition_t, const Tensor& finite, double scale) {
  const Tensor z = logits.to(real_type(logits));
  const Tensor difference = z.softmax(1) - (z + log_columns(logits, target, log_transition_t)).softmax(1);
  const Tensor weights = (grad.dim() == 0 ? grad : grad.unsqueeze(1)) * scale;
  return at::where(finite.unsqueeze(1), difference * weights, 0.0).to(logits.scalar_type());
}

}  // namespace

// --- the operators --------------------------------------------------------------------------------------------------

// `loss` is the mean and per_sample the loss of each row, or `loss` is that of each row and per_sample an empty tensor
// [0]. `statistics` is what the gradient needs again: on the CPU CorrectedStatistics [B, 4], elsewhere which rows have
// a finite loss [B].
ForwardCorrectedResult forward_corrected_loss(const Tensor& logits, const Tensor& target,
                                              const Tensor& log_transition_t, bool mean) {
  check_corrected(logits, target, log_transition_t);
  return (logits.is_cpu() ? losses_on_cpu : losses_elsewhere)(logits, target, log_transition_t, mean);
}

namespace {

// -> [B, C] in the logits' type. grad is that of the mean (0-d), or of each row's loss [B]. Rows whose loss is
// not finite get zeros.
Tensor forward_corrected_loss_backward(const Tensor& grad, const Tensor& logits, const Tensor& target,
                                       const Tensor& log_transition_t, const Tensor& statistics) {
  check_corrected(logits, target, log_transition_t);
  const double scale = grad.dim() == 0 ? 1.0 / static_cast<double>(std::max<int64_t>(logits.size(0), 1)) : 1.0;
  return (logits.is_cpu() ? gradient_on_cpu : gradient_elsewhere)(grad, logits, target, log_transition_t, statistics,
                                                                  scale);
}

// --- derivatives ----------------------------------------------------------------------------------------------------

// Only the loss is an output of the function: `result` was computed before, below autograd.
struct ForwardCorrected : torch::autograd::Function<ForwardCorrected> {
  static variable_list forward(AutogradContext* ctx, const Tensor& logits, const Tensor& target,
                               const Tensor& log_transition_t, const ForwardCorrectedResult& result) {
    const auto& [loss, per_sample, num_nonfinite, statistics] = result;
    ctx->save_for_backward({logits, target, log_transition_t, statistics});
    ctx->set_materialize_grads(false);
    return {loss};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    static const auto op = operator_of(forward_corrected_loss_backward, "forward_corrected_loss_backward");
    const auto saved = ctx->get_saved_variables();
    if (!grads[0].defined()) return {Tensor(), Tensor(), Tensor(), Tensor()};
    return {op.call(grads[0], saved[0], saved[1], saved[2], saved[3]), Tensor(), Tensor(), Tensor()};
  }
};

ForwardCorrectedResult forward_corrected_loss_autograd(const Tensor& logits, const Tensor& target,
                                                       const Tensor& log_transition_t, bool mean) {
  static const auto op = operator_of(forward_corrected_loss, "forward_corrected_loss");
  check_one_device(op, logits, target, log_transition_t);
  auto result = call_below_autograd(op, logits, target, log_transition_t, mean);
  if (needs_derivative(logits)) {
    std::get<0>(result) = ForwardCorrected::apply(logits, target, log_transition_t, result)[0];
  }
  return result;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(jocor_fast, m) {
  m.def(
      "forward_corrected_loss(Tensor logits, Tensor target, Tensor log_transition_t, bool mean) -> "
      "(Tensor loss, Tensor per_sample, Tensor num_nonfinite, Tensor statistics)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "forward_corrected_loss_backward(Tensor grad, Tensor logits, Tensor target, Tensor log_transition_t, "
      "Tensor statistics) -> Tensor",
      {at::Tag::pt2_compliant_tag});
}
TORCH_LIBRARY_IMPL(jocor_fast, CompositeExplicitAutograd, m) {
  m.impl("forward_corrected_loss", &forward_corrected_loss);
  m.impl("forward_corrected_loss_backward", &forward_corrected_loss_backward);
}
TORCH_LIBRARY_IMPL(jocor_fast, Autograd, m) {
  m.impl("forward_corrected_loss", &forward_corrected_loss_autograd);
  differentiable_once(m, "forward_corrected_loss_backward", &forward_corrected_loss_backward);
}

}  // namespace jocor_fast
