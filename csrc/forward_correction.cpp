// Forward correction (Patrini et al., CVPR 2017), -log((p T)[y]) of each row, from operators of torch: it has no
// counterpart among the kernels of joint_loss.h. In C++ because the same steps under Python cost as much again as the
// whole step at 128 x 10. One composite operator serves every device.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <limits>

#include "arguments.h"

namespace jocor_fast {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// On the CPU an invalid label is an error.
void check_labels(const Tensor& target, int64_t classes) {
  const Tensor labels = target.to(at::kLong).contiguous();
  const int64_t* const values = labels.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < labels.numel(); ++row) {
    TORCH_CHECK_VALUE(values[row] >= 0 && values[row] < classes, "target[", row, "] is ", values[row],
                      "; a label in [0, ", classes, ") is accepted");
  }
}

// What to index with. Elsewhere than on the CPU looking at a label would mean waiting: an invalid one points at some
// class, and its loss is NaN.
Tensor indices(const Tensor& target, int64_t classes) {
  const Tensor labels = target.to(at::kLong);
  return labels.is_cpu() ? labels : labels.clamp(0, classes - 1);
}

// log T[i, y] of each row's label y beside the classes i. `log_transition_t` is [C, C], row y holding log T[:, y].
Tensor at_labels(const Tensor& log_transition_t, const Tensor& target) {
  return log_transition_t.index_select(0, indices(target, log_transition_t.size(0)));
}

// -> [B]: -log sum_i exp(log p_i + log T[i, y]), by log-sum-exp: the product p T itself would underflow.
Tensor forward_corrected_rows(const Tensor& logits, const Tensor& target, const Tensor& log_transition_t) {
  if (target.is_cpu()) check_labels(target, logits.size(1));
  const Tensor log_p = logits.log_softmax(1, real_type(logits));
  const Tensor losses = (log_p + at_labels(log_transition_t, target)).logsumexp(1).neg_();
  if (losses.is_cpu()) return losses;
  const Tensor labels = target.to(at::kLong);
  const Tensor valid = labels.ge(0).logical_and_(labels.lt(logits.size(1)));
  return at::where(valid, losses, std::numeric_limits<double>::quiet_NaN());
}

// dl/dz = p - w, with w_j = p_j T[j, y] / (p T)[y] = softmax(z + log T[:, y])_j. Zero, and written, where l is not
// finite. Everything is computed from the saved inputs, so that the second derivative is right too.
struct ForwardCorrected : torch::autograd::Function<ForwardCorrected> {
  static variable_list forward(AutogradContext* ctx, const Tensor& logits, const Tensor& target,
                               const Tensor& log_transition_t) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("jocor_fast::forward_corrected_rows", "")
                               .typed<decltype(forward_corrected_rows)>();
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    Tensor losses = op.call(logits, target, log_transition_t);
    ctx->save_for_backward({logits, target, log_transition_t, losses.isfinite().unsqueeze(1)});
    return {losses};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor wide = saved[0].to(real_type(saved[0]));
    const Tensor difference = wide.softmax(1) - (wide + at_labels(saved[2], saved[1])).softmax(1);
    const Tensor gradient = at::where(saved[3], difference * grads[0].unsqueeze(1), 0.0);
    return {gradient.to(saved[0].scalar_type()), Tensor(), Tensor()};
  }
};

Tensor forward_corrected_rows_autograd(const Tensor& logits, const Tensor& target, const Tensor& log_transition_t) {
  return ForwardCorrected::apply(logits, target, log_transition_t)[0];
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(jocor_fast, m) {
  m.def("forward_corrected_rows(Tensor logits, Tensor target, Tensor log_transition_t) -> Tensor",
        {at::Tag::pt2_compliant_tag});
}
TORCH_LIBRARY_IMPL(jocor_fast, CompositeExplicitAutograd, m) {
  m.impl("forward_corrected_rows", &forward_corrected_rows);
}
TORCH_LIBRARY_IMPL(jocor_fast, Autograd, m) { m.impl("forward_corrected_rows", &forward_corrected_rows_autograd); }

}  // namespace jocor_fast
