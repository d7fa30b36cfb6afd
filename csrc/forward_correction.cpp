// Forward correction (Patrini et al., CVPR 2017): -log((p T)[y]) of each row, and its gradient. It has no counterpart
// among the kernels of joint_loss.h. On the CPU a loop: torch's operators take three times as long at 128 x 10, most of
// it to wake threads for them. Elsewhere torch's operators.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <atomic>
#include <cmath>
#include <limits>

#include "arguments.h"
#include "autograd.h"
#include "ops.h"
#include "threads.h"

namespace jocor_fast {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// --- on the CPU -----------------------------------------------------------------------------------------------------

// p_j = exp(z_j - max) / sum, and the share of class j in (p T)[y], exp(z_j - max + log T[j, y] - top) / top_sum. By
// the largest terms, for the product p T itself would underflow.
template <class Real>
struct CorrectedRow {
  static constexpr Real kInfinity = std::numeric_limits<Real>::infinity();
  const Real* z;
  const Real* log_t;  // log T[:, y] of the row's label y
  int64_t classes;
  Real max = -kInfinity, top = -kInfinity, sum = 0, top_sum = 0;

  CorrectedRow(const Real* z, const Real* log_t, int64_t classes) : z(z), log_t(log_t), classes(classes) {
    for (int64_t j = 0; j < classes; ++j) max = z[j] > max ? z[j] : max;
    for (int64_t j = 0; j < classes; ++j) top = joint(j) > top ? joint(j) : top;
    for (int64_t j = 0; j < classes; ++j) {
      sum += std::exp(z[j] - max);
      top_sum += std::exp(joint(j) - top);
    }
  }

  Real joint(int64_t j) const { return (z[j] - max) + log_t[j]; }
  Real loss() const {  // infinite where no class can have the label, and NaN where a logit is NaN or infinite
    const bool impossible = top == -kInfinity && std::isfinite(sum);
    return impossible ? kInfinity : std::log(sum) - (top + std::log(top_sum));
  }
  Real gradient(int64_t j) const { return std::exp(z[j] - max) / sum - std::exp(joint(j) - top) / top_sum; }
};

void check_labels(const Tensor& labels, int64_t classes) {
  const int64_t* const values = labels.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < labels.numel(); ++row) {
    TORCH_CHECK_VALUE(values[row] >= 0 && values[row] < classes, "target[", row, "] is ", values[row],
                      "; a label in [0, ", classes, ") is accepted");
  }
}

// Calls body(row number, CorrectedRow) for all rows. The tensors are contiguous, the labels checked.
template <class Real, class Body>
void for_each_row(const Tensor& logits, const Tensor& labels, const Tensor& log_transition_t, Body body) {
  const int64_t classes = logits.size(1);
  const Real* const z = logits.const_data_ptr<Real>();
  const Real* const log_t = log_transition_t.const_data_ptr<Real>();
  const int64_t* const y = labels.const_data_ptr<int64_t>();
  at::parallel_for(0, logits.size(0), rows_per_thread(classes), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      body(row, CorrectedRow<Real>(z + row * classes, log_t + y[row] * classes, classes));
    }
  });
}

// --- the operators --------------------------------------------------------------------------------------------------

struct Inputs {
  Inputs(const Tensor& given_logits, const Tensor& target, const Tensor& given_log_t)
      : logits(given_logits.to(real_type(given_logits)).contiguous()),
        labels(target.to(at::kLong).contiguous()),
        log_transition_t(given_log_t.to(logits.scalar_type()).contiguous()) {}
  Tensor logits, labels, log_transition_t;

  // log T[i, y] of each row's label y beside the classes i. An invalid label, at which the host cannot look without
  // waiting, points at some class.
  Tensor at_labels() const { return log_transition_t.index_select(0, labels.clamp(0, logits.size(1) - 1)); }
};

ForwardCorrectedResult forward_corrected_rows(const Tensor& logits, const Tensor& target,
                                              const Tensor& log_transition_t) {
  const Inputs inputs(logits, target, log_transition_t);
  if (!logits.is_cpu()) {
    const Tensor losses = (inputs.logits.log_softmax(1) + inputs.at_labels()).logsumexp(1).neg_();
    const Tensor valid = inputs.labels.ge(0).logical_and_(inputs.labels.lt(logits.size(1)));
    const Tensor per_sample = at::where(valid, losses, std::numeric_limits<double>::quiet_NaN());
    return {per_sample, per_sample.isfinite().logical_not_().sum()};
  }
  check_labels(inputs.labels, logits.size(1));
  Tensor per_sample = at::empty({logits.size(0)}, inputs.logits.options());
  std::atomic<int64_t> num_nonfinite{0};
  AT_DISPATCH_FLOATING_TYPES(per_sample.scalar_type(), "forward_corrected_rows", [&] {
    scalar_t* const values = per_sample.mutable_data_ptr<scalar_t>();
    for_each_row<scalar_t>(inputs.logits, inputs.labels, inputs.log_transition_t,
                           [&](int64_t row, const auto& corrected) {
                             values[row] = corrected.loss();
                             if (!std::isfinite(values[row])) ++num_nonfinite;
                           });
  });
  return {per_sample, at::scalar_tensor(num_nonfinite.load(), inputs.labels.options())};
}

// -> [B, C] in the logits' type, of the sum of grad [B] times the losses. A row whose loss is not finite gets zeros
// that are written.
Tensor forward_corrected_rows_backward(const Tensor& grad, const Tensor& losses, const Tensor& logits,
                                       const Tensor& target, const Tensor& log_transition_t) {
  const Inputs inputs(logits, target, log_transition_t);
  if (!logits.is_cpu()) {
    const Tensor difference = inputs.logits.softmax(1) - (inputs.logits + inputs.at_labels()).softmax(1);
    return at::where(losses.isfinite().unsqueeze(1), difference * grad.unsqueeze(1), 0.0).to(logits.scalar_type());
  }
  Tensor gradient = at::empty(logits.sizes(), inputs.logits.options());
  const Tensor upstream = grad.contiguous(), saved = losses.contiguous();  // hooks may have changed its strides
  AT_DISPATCH_FLOATING_TYPES(gradient.scalar_type(), "forward_corrected_rows_backward", [&] {
    const scalar_t* const scales = upstream.const_data_ptr<scalar_t>();
    const scalar_t* const values = saved.const_data_ptr<scalar_t>();
    scalar_t* const results = gradient.mutable_data_ptr<scalar_t>();
    for_each_row<scalar_t>(inputs.logits, inputs.labels, inputs.log_transition_t,
                           [&](int64_t row, const auto& corrected) {
                             const bool finite = std::isfinite(values[row]);
                             for (int64_t j = 0; j < corrected.classes; ++j) {
                               scalar_t& result = results[row * corrected.classes + j];
                               result = finite ? corrected.gradient(j) * scales[row] : scalar_t(0);
                             }
                           });
  });
  return gradient.to(logits.scalar_type());
}

// --- derivatives ----------------------------------------------------------------------------------------------------

struct ForwardCorrected : torch::autograd::Function<ForwardCorrected> {
  static variable_list forward(AutogradContext* ctx, const Tensor& logits, const Tensor& target,
                               const Tensor& log_transition_t) {
    static const auto op = operator_handle<decltype(forward_corrected_rows)>("jocor_fast::forward_corrected_rows");
    auto [per_sample, num_nonfinite] = call_below_autograd(op, logits, target, log_transition_t);
    ctx->save_for_backward({per_sample, logits, target, log_transition_t});
    ctx->mark_non_differentiable({num_nonfinite});
    ctx->set_materialize_grads(false);
    return {per_sample, num_nonfinite};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    static const auto op =
        operator_handle<decltype(forward_corrected_rows_backward)>("jocor_fast::forward_corrected_rows_backward");
    const auto saved = ctx->get_saved_variables();
    if (!grads[0].defined()) return {Tensor(), Tensor(), Tensor()};
    return {op.call(grads[0], saved[0], saved[1], saved[2], saved[3]), Tensor(), Tensor()};
  }
};

ForwardCorrectedResult forward_corrected_rows_autograd(const Tensor& logits, const Tensor& target,
                                                       const Tensor& log_transition_t) {
  auto out = ForwardCorrected::apply(logits, target, log_transition_t);
  return {out[0], out[1]};
}

Tensor forward_corrected_rows_backward_autograd(const Tensor& grad, const Tensor& losses, const Tensor& logits,
                                                const Tensor& target, const Tensor& log_transition_t) {
  static const auto op =
      operator_handle<decltype(forward_corrected_rows_backward)>("jocor_fast::forward_corrected_rows_backward");
  return DifferentiableOnce::apply(grad, logits, logits, [&]() -> variable_list {
    return {call_below_autograd(op, grad, losses, logits, target, log_transition_t)};
  })[0];
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(jocor_fast, m) {
  m.def(
      "forward_corrected_rows(Tensor logits, Tensor target, Tensor log_transition_t) -> "
      "(Tensor per_sample, Tensor num_nonfinite)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "forward_corrected_rows_backward(Tensor grad, Tensor losses, Tensor logits, Tensor target, "
      "Tensor log_transition_t) -> Tensor",
      {at::Tag::pt2_compliant_tag});
}
TORCH_LIBRARY_IMPL(jocor_fast, CompositeExplicitAutograd, m) {
  m.impl("forward_corrected_rows", &forward_corrected_rows);
  m.impl("forward_corrected_rows_backward", &forward_corrected_rows_backward);
}
TORCH_LIBRARY_IMPL(jocor_fast, Autograd, m) {
  m.impl("forward_corrected_rows", &forward_corrected_rows_autograd);
  m.impl("forward_corrected_rows_backward", &forward_corrected_rows_backward_autograd);
}

}  // namespace jocor_fast
