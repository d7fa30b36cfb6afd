// The operators on two networks' logits: check, allocate, run the steps on the tensors' device. Their derivatives,
// schemas and registration stand at the end.
#include "ops.h"

#include <torch/library.h>

#include <limits>

#include "arguments.h"
#include "autograd.h"
#include "joint_loss.h"
#include "ready_gradients.h"
#include "steps.h"

namespace jocor_fast {
namespace {

std::optional<int64_t> as_int(const std::optional<c10::SymInt>& number) {
  if (!number.has_value()) return std::nullopt;
  return number->guard_int(__FILE__, __LINE__);
}

template <class T>
const T* data_or_null(const Tensor& tensor) {
  return tensor.defined() ? static_cast<const T*>(tensor.const_data_ptr()) : nullptr;
}

// Gradients that are computed together with the loss: see ready_gradients.h.
struct Ready {
  Tensor gradient1, gradient2, kept_rows;

  // The row kernel writes its exponentials into the memory of the gradients, which the gradient kernel then overwrites.
  void keep(const Tensor& logits, RowParams& params) {
    gradient1 = new_tensor(logits.sizes(), logits.scalar_type(), logits);
    gradient2 = new_tensor(logits.sizes(), logits.scalar_type(), logits);
    kept_rows = new_tensor({logits.size(0), 4}, logits.scalar_type(), logits);
    params.exponentials1 = gradient1.mutable_data_ptr();
    params.exponentials2 = gradient2.mutable_data_ptr();
    params.kept_rows = kept_rows.mutable_data_ptr();
  }
};

// --- the losses and their gradients, without autograd and the dispatcher --------------------------------------------

// Where `ready` is not null, the row kernel also keeps what compute_gradients needs to follow at once.
JocorLossResult compute_jocor(Ready* ready, const Tensor& logits1, const Tensor& logits2, const Tensor& target,
                              std::optional<int64_t> ignore_index, double co_lambda, std::optional<double> forget_rate,
                              std::optional<c10::SymInt> num_keep, const std::optional<Tensor>& num_keep_tensor,
                              bool only_differing) {
  const CheckedPair checked = check_pair(logits1, logits2, target, ignore_index, {co_lambda});
  SelectionParams selection{};
  check_keep({forget_rate, std::nullopt, as_int(num_keep), num_keep_tensor}, target, selection);

  const int64_t rows = checked.pair.rows;
  const auto real = real_type(logits1);
  Tensor loss = new_tensor({}, real, target), per_sample = new_tensor({rows}, real, target);
  Tensor statistics = new_tensor({rows, 4}, real, target), selected = new_tensor({rows}, at::kBool, target);
  Tensor num_selected = new_tensor({}, at::kLong, target), num_nonfinite = new_tensor({}, at::kLong, target);

  RowParams row_params{};
  row_params.pair = checked.pair;
  row_params.per_sample = per_sample.mutable_data_ptr();
  row_params.statistics = statistics.mutable_data_ptr();
  row_params.row_state = static_cast<uint8_t*>(selected.mutable_data_ptr());  // the selection reads, then replaces it
  row_params.compare_predictions = only_differing;
  if (ready != nullptr) ready->keep(logits1, row_params);

  selection.is_double = per_sample.scalar_type() == at::kDouble;
  selection.rows = rows;
  selection.losses = row_params.per_sample;
  selection.row_state = row_params.row_state;
  selection.disagreement = only_differing ? Disagreement::required : Disagreement::ignored;
  selection.selected = row_params.row_state;
  selection.num_selected = num_selected.mutable_data_ptr<int64_t>();
  selection.num_nonfinite = num_nonfinite.mutable_data_ptr<int64_t>();
  selection.mean_of = row_params.per_sample;
  selection.mean = loss.mutable_data_ptr();
  if (rows == 0) {  // nothing is launched
    for (Tensor* number : {&loss, &num_selected, &num_nonfinite}) number->zero_();
  } else {
    on_device_of(target, [&](const auto& steps) { steps.row_losses_and_selection(row_params, selection); });
  }
  return {loss, per_sample, selected, num_selected, num_nonfinite, statistics};
}

// Two selections on one row kernel: each network ranks by its own cross-entropy, and the loss of each is averaged over
// the rows that the other chose. Rows whose joint loss at lambda = 0, CE1 + CE2, is not finite are chosen by neither.
CoteachingLossResult compute_coteaching(Ready* ready, const Tensor& logits1, const Tensor& logits2,
                                        const Tensor& target, std::optional<int64_t> ignore_index,
                                        std::optional<double> forget_rate,
                                        const std::optional<Tensor>& forget_rate_tensor,
                                        std::optional<c10::SymInt> num_keep,
                                        const std::optional<Tensor>& num_keep_tensor, bool round_down,
                                        bool disagreement) {
  const CheckedPair checked = check_pair(logits1, logits2, target, ignore_index, {/*co_lambda=*/0.0});
  SelectionParams first{};
  check_keep({forget_rate, forget_rate_tensor, as_int(num_keep), num_keep_tensor}, target, first);

  const int64_t rows = checked.pair.rows;
  const auto real = real_type(logits1);
  Tensor loss = new_tensor({}, real, target), joint = new_tensor({rows}, real, target);
  Tensor per_sample1 = new_tensor({rows}, real, target), per_sample2 = new_tensor({rows}, real, target);
  Tensor selected1 = new_tensor({rows}, at::kBool, target), selected2 = new_tensor({rows}, at::kBool, target);
  Tensor num_selected1 = new_tensor({}, at::kLong, target), num_selected2 = new_tensor({}, at::kLong, target);
  Tensor num_nonfinite = new_tensor({}, at::kLong, target), statistics = new_tensor({rows, 4}, real, target);

  RowParams row_params{};
  row_params.pair = checked.pair;
  row_params.per_sample = joint.mutable_data_ptr();
  row_params.statistics = statistics.mutable_data_ptr();
  row_params.cross_entropy1 = per_sample1.mutable_data_ptr();
  row_params.cross_entropy2 = per_sample2.mutable_data_ptr();
  row_params.row_state = static_cast<uint8_t*>(selected2.mutable_data_ptr());  // until the second selection replaces it
  row_params.compare_predictions = disagreement;
  if (ready != nullptr) ready->keep(logits1, row_params);

  first.is_double = loss.scalar_type() == at::kDouble;
  first.rows = rows;
  first.also_finite = row_params.per_sample;
  first.row_state = row_params.row_state;
  first.disagreement = disagreement ? Disagreement::preferred : Disagreement::ignored;
  first.round_down = round_down;
  first.mean = loss.mutable_data_ptr();
  SelectionParams second = first;

  first.losses = row_params.cross_entropy1;
  first.mean_of = row_params.cross_entropy2;
  first.selected = static_cast<uint8_t*>(selected1.mutable_data_ptr());
  first.num_selected = num_selected1.mutable_data_ptr<int64_t>();
  first.num_nonfinite = num_nonfinite.mutable_data_ptr<int64_t>();  // the same in both

  second.losses = row_params.cross_entropy2;
  second.mean_of = row_params.cross_entropy1;
  second.mean_offset = first.mean;
  second.selected = static_cast<uint8_t*>(selected2.mutable_data_ptr());
  second.num_selected = num_selected2.mutable_data_ptr<int64_t>();
  if (rows == 0) {  // nothing is launched
    for (Tensor* number : {&loss, &num_selected1, &num_selected2, &num_nonfinite}) number->zero_();
  } else {
    on_device_of(target, [&](const auto& steps) {
      steps.row_losses_and_selection(row_params, first);
      steps.select_small_loss(second);
    });
  }
  return {loss,          per_sample1,   per_sample2,   selected1, selected2,
          num_selected1, num_selected2, num_nonfinite, statistics};
}

// Allocates the gradients that are not defined yet; those of `ready` are, and hold the exponentials.
void compute_gradients(Tensor& grad1, Tensor& grad2, const Tensor& kept_rows, const Tensor& grad, const Tensor& logits1,
                       const Tensor& logits2, const Tensor& target, std::optional<int64_t> ignore_index,
                       double co_lambda, const Tensor& statistics, const Tensor& selected1, const Tensor& num_selected1,
                       const Tensor& selected2, const Tensor& num_selected2, bool needs_grad1, bool needs_grad2) {
  const CheckedPair checked = check_pair(logits1, logits2, target, ignore_index, {co_lambda});
  check_backward(grad, statistics, logits1);
  const auto allocate = [&](Tensor& gradient, bool needed) {
    if (gradient.defined()) return;
    gradient = new_tensor(needed ? logits1.sizes() : at::IntArrayRef{0}, logits1.scalar_type(), logits1);
  };
  allocate(grad1, needs_grad1);
  allocate(grad2, needs_grad2);
  GradientParams params{};
  params.pair = checked.pair;
  params.statistics = statistics.const_data_ptr();
  params.grad_output = grad.const_data_ptr();
  params.grad_stride = grad.dim() == 0 ? 0 : grad.stride(0);
  params.selected1 = data_or_null<uint8_t>(selected1);
  params.selected2 = data_or_null<uint8_t>(selected2);
  params.num_selected1 = data_or_null<int64_t>(num_selected1);
  params.num_selected2 = data_or_null<int64_t>(num_selected2);
  params.grad1 = needs_grad1 ? grad1.mutable_data_ptr() : nullptr;
  params.grad2 = needs_grad2 ? grad2.mutable_data_ptr() : nullptr;
  params.kept_rows = data_or_null<void>(kept_rows);
  if (checked.pair.rows > 0 && (needs_grad1 || needs_grad2)) {
    on_device_of(target, [&](const auto& steps) { steps.row_gradients(params); });
  }
}

}  // namespace

// --- the operators --------------------------------------------------------------------------------------------------

JocorLossResult jocor_loss(const Tensor& logits1, const Tensor& logits2, const Tensor& target,
                           std::optional<int64_t> ignore_index, double co_lambda, std::optional<double> forget_rate,
                           std::optional<c10::SymInt> num_keep, const std::optional<Tensor>& num_keep_tensor,
                           bool only_differing) {
  return compute_jocor(nullptr, logits1, logits2, target, ignore_index, co_lambda, forget_rate, num_keep,
                       num_keep_tensor, only_differing);
}

CoteachingLossResult coteaching_loss(const Tensor& logits1, const Tensor& logits2, const Tensor& target,
                                     std::optional<int64_t> ignore_index, std::optional<double> forget_rate,
                                     const std::optional<Tensor>& forget_rate_tensor,
                                     std::optional<c10::SymInt> num_keep, const std::optional<Tensor>& num_keep_tensor,
                                     bool round_down, bool disagreement) {
  return compute_coteaching(nullptr, logits1, logits2, target, ignore_index, forget_rate, forget_rate_tensor, num_keep,
                            num_keep_tensor, round_down, disagreement);
}

JointLossResult joint_loss(const Tensor& logits1, const Tensor& logits2, const Tensor& target,
                           std::optional<int64_t> ignore_index, double co_lambda) {
  const CheckedPair checked = check_pair(logits1, logits2, target, ignore_index, {co_lambda});
  const auto real = real_type(logits1);
  Tensor per_sample = new_tensor({checked.pair.rows}, real, target);
  Tensor statistics = new_tensor({checked.pair.rows, 4}, real, target);
  RowParams params{};
  params.pair = checked.pair;
  params.per_sample = per_sample.mutable_data_ptr();
  params.statistics = statistics.mutable_data_ptr();
  if (checked.pair.rows > 0) on_device_of(target, [&](const auto& steps) { steps.row_losses(params); });
  return {per_sample, statistics};
}

std::tuple<Tensor, Tensor> joint_loss_backward(const Tensor& grad, const Tensor& logits1, const Tensor& logits2,
                                               const Tensor& target, std::optional<int64_t> ignore_index,
                                               double co_lambda, const Tensor& statistics,
                                               const std::optional<Tensor>& selected1,
                                               const std::optional<Tensor>& num_selected1,
                                               const std::optional<Tensor>& selected2,
                                               const std::optional<Tensor>& num_selected2, bool needs_grad1,
                                               bool needs_grad2) {
  Tensor grad1, grad2;
  compute_gradients(grad1, grad2, /*kept_rows=*/{}, grad, logits1, logits2, target, ignore_index, co_lambda,
                    as_saved(statistics), as_saved(selected1), as_saved(num_selected1), as_saved(selected2),
                    as_saved(num_selected2), needs_grad1, needs_grad2);
  return {grad1, grad2};
}

Tensor select_small_loss(const Tensor& losses, std::optional<c10::SymInt> num_keep,
                         const std::optional<Tensor>& num_keep_tensor, const std::optional<Tensor>& eligible) {
  logit_type(losses, "losses");
  TORCH_CHECK_VALUE(losses.dim() == 1, "losses must have shape [batch], got ", losses.sizes());
  Tensor ranked = losses.to(real_type(losses)).contiguous();  // widening a half type keeps the order and the ties
  Tensor mask;
  if (eligible.has_value()) {
    TORCH_CHECK_TYPE(eligible->scalar_type() == at::kBool, "eligible must be of type bool, got ",
                     dtype_name(*eligible));
    TORCH_CHECK_VALUE(eligible->sizes() == losses.sizes(), "eligible must have shape ", losses.sizes(),
                      " like losses, got ", eligible->sizes());
    check_same_device(*eligible, "eligible", losses, "losses");
    mask = eligible->contiguous();
  }
  SelectionParams params{};
  check_keep({std::nullopt, std::nullopt, as_int(num_keep), num_keep_tensor}, losses, params);
  Tensor selected = new_tensor({losses.size(0)}, at::kBool, losses);
  params.is_double = ranked.scalar_type() == at::kDouble;
  params.rows = losses.size(0);
  params.losses = ranked.const_data_ptr();
  params.row_state = data_or_null<uint8_t>(mask);
  params.selected = static_cast<uint8_t*>(selected.mutable_data_ptr());
  if (params.rows > 0) on_device_of(losses, [&](const auto& steps) { steps.select_small_loss(params); });
  return selected;
}

// --- derivatives ----------------------------------------------------------------------------------------------------

namespace {

// What a gradient needs of its loss's results. selected1 and num_selected1 are the rows that train network 1;
// undefined: all rows.
struct Trained {
  Tensor loss, statistics, selected1, num_selected1, selected2, num_selected2;
};

Trained trained_by(const JocorLossResult& result) {
  const auto& [loss, per_sample, selected, num_selected, num_nonfinite, statistics] = result;
  return {loss, statistics, selected, num_selected, selected, num_selected};
}

Trained trained_by(const CoteachingLossResult& result) {  // each network by the other's choice
  const auto& [loss, per_sample1, per_sample2, selected1, selected2, num_selected1, num_selected2, num_nonfinite,
               statistics] = result;
  return {loss, statistics, selected2, num_selected2, selected1, num_selected1};
}

Trained trained_by(const JointLossResult& result) {
  const auto& [per_sample, statistics] = result;
  return {per_sample, statistics, {}, {}, {}, {}};
}

// The results were computed before, below autograd. Only the loss becomes an output of this function: each further
// output would cost autograd bookkeeping, and torch's compiled autograd accepts none without a derivative.
struct PairLoss : torch::autograd::Function<PairLoss> {
  static variable_list forward(AutogradContext* ctx, const Tensor& logits1, const Tensor& logits2, const Tensor& target,
                               std::optional<int64_t> ignore_index, const JointLossSettings& loss,
                               const Trained& rows) {
    ctx->save_for_backward({logits1, logits2, target, rows.statistics, rows.selected1, rows.num_selected1,
                            rows.selected2, rows.num_selected2});
    ctx->saved_data["ignore_index"] = ignore_index;
    ctx->saved_data["co_lambda"] = loss.co_lambda;
    ctx->set_materialize_grads(false);
    return {rows.loss};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    static const auto op = operator_of(joint_loss_backward, "joint_loss_backward");
    const bool needs1 = ctx->needs_input_grad(0), needs2 = ctx->needs_input_grad(1);
    const auto saved = ctx->get_saved_variables();
    variable_list gradients(6);
    if (!grads[0].defined()) return gradients;
    const auto rows = [&](size_t i) { return saved[i].defined() ? std::optional(saved[i]) : std::nullopt; };
    auto [grad1, grad2] =
        op.call(grads[0], saved[0], saved[1], saved[2], ctx->saved_data["ignore_index"].toOptional<int64_t>(),
                ctx->saved_data["co_lambda"].toDouble(), saved[3], rows(4), rows(5), rows(6), rows(7), needs1, needs2);
    if (needs1) gradients[0] = grad1;
    if (needs2) gradients[1] = grad2;
    return gradients;
  }
};

// The joint loss of an operator, told by the type of its first setting: a double is lambda; co-teaching's is the forget
// rate, an optional, and its loss is of cross-entropies alone.
template <class... Settings>
JointLossSettings loss_of(double co_lambda, const Settings&...) {
  return {co_lambda};
}

template <class... Settings>
JointLossSettings loss_of(const std::optional<double>&, const Settings&...) {
  return {/*co_lambda=*/0.0};
}

template <class Result, class... Settings>
void differentiable(torch::Library& library, const char* name,
                    Result (*kernel)(const Tensor&, const Tensor&, const Tensor&, std::optional<int64_t>,
                                     Settings...)) {
  library.impl(name,
               [op = operator_of(kernel, name)](const Tensor& logits1, const Tensor& logits2, const Tensor& target,
                                                std::optional<int64_t> ignore_index, Settings... settings) -> Result {
                 check_one_device(op, logits1, logits2, target, ignore_index, settings...);
                 Result result = call_below_autograd(op, logits1, logits2, target, ignore_index, settings...);
                 if (needs_derivative(logits1) || needs_derivative(logits2)) {
                   std::get<0>(result) = PairLoss::apply(logits1, logits2, target, ignore_index, loss_of(settings...),
                                                         trained_by(result))[0];
                 }
                 return result;
               });
}

// An operator called from eager mode. It goes through the dispatcher where a mode, a hook or a tangent must see the
// call, or where gradients are needed and left to the backward pass. Else it runs `kernel`, or, where gradients are
// needed, `compute` (the same with a Ready) and compute_gradients.
template <class Result, class... Settings>
Result eagerly(Result (*kernel)(const Tensor&, const Tensor&, const Tensor&, std::optional<int64_t>, Settings...),
               Result (*compute)(Ready*, const Tensor&, const Tensor&, const Tensor&, std::optional<int64_t>,
                                 Settings...),
               const char* name, const Tensor& logits1, const Tensor& logits2, const Tensor& target,
               std::optional<int64_t> ignore_index, std::type_identity_t<Settings>... settings) {
  static const auto op = operator_of(kernel, name);
  const bool dual = logits1._fw_grad(/*level=*/0).defined() || logits2._fw_grad(/*level=*/0).defined();
  const bool needed = needs_derivative(logits1) || needs_derivative(logits2);
  if (dual || at::SavedTensorDefaultHooks::get_hooks().has_value() ||
      !plain_on_cpu(logits1, logits2, target, settings...) || (needed && !gradients_may_be_ready(logits1))) {
    return op.call(logits1, logits2, target, ignore_index, settings...);
  }
  Result result;
  Ready ready;
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    if (!needed) return kernel(logits1, logits2, target, ignore_index, settings...);
    result = compute(&ready, logits1, logits2, target, ignore_index, settings...);
    static const Tensor one = at::ones({}, at::kFloat), one_of_double = at::ones({}, at::kDouble);
    const Trained rows = trained_by(result);
    compute_gradients(ready.gradient1, ready.gradient2, ready.kept_rows,
                      logits1.scalar_type() == at::kDouble ? one_of_double : one, logits1, logits2, target,
                      ignore_index, loss_of(settings...).co_lambda, rows.statistics, rows.selected1, rows.num_selected1,
                      rows.selected2, rows.num_selected2, true, true);
  }
  attach_ready_gradients(std::get<0>(result), logits1, logits2, target, ready.gradient1, ready.gradient2);
  return result;
}

void register_kernels(torch::Library& m) {
  m.impl("jocor_loss", &jocor_loss);
  m.impl("coteaching_loss", &coteaching_loss);
  m.impl("joint_loss", &joint_loss);
  m.impl("joint_loss_backward", &joint_loss_backward);
  m.impl("select_small_loss", &select_small_loss);
}

}  // namespace

JocorLossResult jocor_loss_eagerly(const Tensor& logits1, const Tensor& logits2, const Tensor& target,
                                   std::optional<int64_t> ignore_index, double co_lambda,
                                   std::optional<double> forget_rate, std::optional<c10::SymInt> num_keep,
                                   const std::optional<Tensor>& num_keep_tensor, bool only_differing) {
  return eagerly(&jocor_loss, &compute_jocor, "jocor_loss", logits1, logits2, target, ignore_index, co_lambda,
                 forget_rate, num_keep, num_keep_tensor, only_differing);
}

CoteachingLossResult coteaching_loss_eagerly(const Tensor& logits1, const Tensor& logits2, const Tensor& target,
                                             std::optional<int64_t> ignore_index, std::optional<double> forget_rate,
                                             const std::optional<Tensor>& forget_rate_tensor,
                                             std::optional<c10::SymInt> num_keep,
                                             const std::optional<Tensor>& num_keep_tensor, bool round_down,
                                             bool disagreement) {
  return eagerly(&coteaching_loss, &compute_coteaching, "coteaching_loss", logits1, logits2, target, ignore_index,
                 forget_rate, forget_rate_tensor, num_keep, num_keep_tensor, round_down, disagreement);
}

TORCH_LIBRARY(jocor_fast, m) {
  const auto def = [&](const char* schema) { m.def(schema, {at::Tag::pt2_compliant_tag}); };
  def("jocor_loss(Tensor logits1, Tensor logits2, Tensor target, int? ignore_index, float co_lambda, "
      "float? forget_rate, SymInt? num_keep, Tensor? num_keep_tensor, bool only_differing) -> "
      "(Tensor loss, Tensor per_sample, Tensor selected, Tensor num_selected, Tensor num_nonfinite, Tensor "
      "statistics)");
  def("coteaching_loss(Tensor logits1, Tensor logits2, Tensor target, int? ignore_index, float? forget_rate, "
      "Tensor? forget_rate_tensor, SymInt? num_keep, Tensor? num_keep_tensor, bool round_down, bool disagreement) -> "
      "(Tensor loss, Tensor per_sample1, Tensor per_sample2, Tensor selected1, Tensor selected2, "
      "Tensor num_selected1, Tensor num_selected2, Tensor num_nonfinite, Tensor statistics)");
  def("joint_loss(Tensor logits1, Tensor logits2, Tensor target, int? ignore_index, float co_lambda) -> "
      "(Tensor per_sample, Tensor statistics)");
  def("joint_loss_backward(Tensor grad, Tensor logits1, Tensor logits2, Tensor target, int? ignore_index, "
      "float co_lambda, Tensor statistics, Tensor? selected1, Tensor? num_selected1, Tensor? selected2, "
      "Tensor? num_selected2, bool needs_grad1, bool needs_grad2) -> (Tensor grad1, Tensor grad2)");
  def("select_small_loss(Tensor losses, SymInt? num_keep, Tensor? num_keep_tensor, Tensor? eligible) -> Tensor");
}

TORCH_LIBRARY_IMPL(jocor_fast, CPU, m) { register_kernels(m); }
#ifdef JOCOR_FAST_CUDA
TORCH_LIBRARY_IMPL(jocor_fast, CUDA, m) { register_kernels(m); }
#endif

TORCH_LIBRARY_IMPL(jocor_fast, Autograd, m) {
  differentiable(m, "jocor_loss", &jocor_loss);
  differentiable(m, "coteaching_loss", &coteaching_loss);
  differentiable(m, "joint_loss", &joint_loss);
  differentiable_once(m, "joint_loss_backward", &joint_loss_backward);
  not_differentiable(m, "select_small_loss", &select_small_loss);
}

}  // namespace jocor_fast
