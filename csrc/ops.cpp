// The operators: check, allocate, run the three steps on the tensors' device. Schemas stand at the end; autograd.cpp
// adds the derivatives.
#include "ops.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <limits>

#include "arguments.h"
#include "joint_loss.h"
#include "threads.h"

#ifdef JOCOR_FAST_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace jocor_fast {
namespace {

// --- the three steps, on whatever device ----------------------------------------------------------------------------

#ifdef JOCOR_FAST_CUDA
template <class Launch>
void on_current_stream(const Tensor& tensor, Launch launch) {
  const c10::cuda::CUDAGuard guard(tensor.device());
  const char* error = launch(static_cast<void*>(c10::cuda::getCurrentCUDAStream().stream()));
  TORCH_CHECK(error == nullptr, "jocor_fast: a kernel could not be launched: ", error);
}
#endif

void run_rows_on_cpu(const RowParams& params, const Tensor& target) {
  const int64_t bad = first_bad_row(params.pair.rows, params.pair.classes,
                                    [&](int64_t begin, int64_t end) { return cpu::row_losses(params, begin, end); });
  check_labels_are_valid(bad, target, params.pair.classes, " or ignore_index");
}

void run_rows(const RowParams& params, const Tensor& target) {
#ifdef JOCOR_FAST_CUDA
  if (target.is_cuda()) {
    on_current_stream(target, [&](void* stream) { return cuda::row_losses(params, stream); });
    return;
  }
#endif
  run_rows_on_cpu(params, target);
}

void run_selection(const SelectionParams& params, const Tensor& losses) {
#ifdef JOCOR_FAST_CUDA
  if (losses.is_cuda()) {
    on_current_stream(losses, [&](void* stream) { return cuda::select_small_loss(params, stream); });
    return;
  }
#endif
  (void)losses;
  cpu::select_small_loss(params);
}

void run_rows_and_selection(const RowParams& rows, const SelectionParams& selection, const Tensor& target) {
#ifdef JOCOR_FAST_CUDA
  if (target.is_cuda()) {
    on_current_stream(target, [&](void* stream) { return cuda::row_losses_and_selection(rows, selection, stream); });
    return;
  }
#endif
  run_rows_on_cpu(rows, target);
  cpu::select_small_loss(selection);
}

void run_gradients(const GradientParams& params, const Tensor& target) {
#ifdef JOCOR_FAST_CUDA
  if (target.is_cuda()) {
    on_current_stream(target, [&](void* stream) { return cuda::row_gradients(params, stream); });
    return;
  }
#endif
  (void)target;
  share_out_rows(params.pair.rows, params.pair.classes,
                 [&](int64_t begin, int64_t end) { cpu::row_gradients(params, begin, end); });
}

const void* data_or_null(const Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr() : nullptr; }

}  // namespace

// --- the operators --------------------------------------------------------------------------------------------------

namespace {

// The mean loss of the rows that a selection takes by their losses: `selection` holds how many, and among which.
JocorLossResult selected_mean_loss(const CheckedPair& checked, SelectionParams selection) {
  const Tensor& target = checked.target;
  const int64_t rows = checked.pair.rows;
  const auto real = checked.logits1.options().dtype(real_type(checked.logits1));
  const auto count = target.options().dtype(at::kLong);
  Tensor loss = at::empty({}, real);
  Tensor per_sample = at::empty({rows}, real);
  Tensor statistics = at::empty({rows, 4}, real);
  Tensor selected = at::empty({rows}, target.options().dtype(at::kBool));
  Tensor num_selected = at::empty({}, count);
  Tensor num_nonfinite = at::empty({}, count);

  RowParams row_params{};
  row_params.pair = checked.pair;
  row_params.per_sample = per_sample.mutable_data_ptr();
  row_params.statistics = statistics.mutable_data_ptr();
  row_params.row_state = static_cast<uint8_t*>(selected.mutable_data_ptr());  // the selection reads, then replaces it
  row_params.compare_predictions = selection.disagreement != Disagreement::ignored;

  selection.is_double = per_sample.scalar_type() == at::kDouble;
  selection.rows = rows;
  selection.losses = row_params.per_sample;
  selection.row_state = row_params.row_state;
  selection.selected = row_params.row_state;
  selection.num_selected = num_selected.mutable_data_ptr<int64_t>();
  selection.num_nonfinite = num_nonfinite.mutable_data_ptr<int64_t>();
  selection.mean_of = row_params.per_sample;
  selection.mean = loss.mutable_data_ptr();
  if (rows == 0) {  // nothing is launched
    loss.zero_();
    num_selected.zero_();
    num_nonfinite.zero_();
  } else {
    run_rows_and_selection(row_params, selection, target);
  }
  return {loss, per_sample, selected, num_selected, num_nonfinite, statistics};
}

}  // namespace

JocorLossResult jocor_loss(const Tensor& logits1, const Tensor& logits2, const Tensor& target, double co_lambda,
                           std::optional<double> forget_rate, std::optional<int64_t> num_keep,
                           const std::optional<Tensor>& num_keep_tensor, std::optional<int64_t> ignore_index) {
  const CheckedPair checked = check_pair(logits1, logits2, target, co_lambda, ignore_index);
  SelectionParams selection{};
  check_keep({forget_rate, std::nullopt, num_keep, num_keep_tensor}, target, selection);
  return selected_mean_loss(checked, selection);
}

// Both networks train on the same rows, so that the mean of CE1 and that of CE2 add up to the mean of the joint loss at
// lambda = 0.
JocorLossResult decoupling_loss(const Tensor& logits1, const Tensor& logits2, const Tensor& target,
                                std::optional<int64_t> ignore_index) {
  const CheckedPair checked = check_pair(logits1, logits2, target, /*co_lambda=*/0.0, ignore_index);
  SelectionParams selection{};
  selection.num_keep = std::numeric_limits<int64_t>::max();
  selection.disagreement = Disagreement::required;
  return selected_mean_loss(checked, selection);
}

// Two selections on one row kernel: each network ranks by its own cross-entropy, and the loss of each is averaged over
// the rows that the other chose. Rows whose joint loss at lambda = 0, CE1 + CE2, is not finite are chosen by neither.
CoteachingLossResult coteaching_loss(const Tensor& logits1, const Tensor& logits2, const Tensor& target,
                                     std::optional<double> forget_rate, const std::optional<Tensor>& forget_rate_tensor,
                                     std::optional<int64_t> num_keep, const std::optional<Tensor>& num_keep_tensor,
                                     bool round_down, bool disagreement, std::optional<int64_t> ignore_index) {
  const CheckedPair checked = check_pair(logits1, logits2, target, /*co_lambda=*/0.0, ignore_index);
  SelectionParams first{};
  check_keep({forget_rate, forget_rate_tensor, num_keep, num_keep_tensor}, target, first);

  const int64_t rows = checked.pair.rows;
  const auto real = logits1.options().dtype(real_type(logits1));
  const auto mask = target.options().dtype(at::kBool), count = target.options().dtype(at::kLong);
  Tensor loss = at::empty({}, real), joint = at::empty({rows}, real), statistics = at::empty({rows, 4}, real);
  Tensor per_sample1 = at::empty({rows}, real), per_sample2 = at::empty({rows}, real);
  Tensor selected1 = at::empty({rows}, mask), selected2 = at::empty({rows}, mask);
  Tensor num_selected1 = at::empty({}, count), num_selected2 = at::empty({}, count);
  Tensor num_nonfinite = at::empty({}, count);

  RowParams row_params{};
  row_params.pair = checked.pair;
  row_params.per_sample = joint.mutable_data_ptr();
  row_params.statistics = statistics.mutable_data_ptr();
  row_params.cross_entropy1 = per_sample1.mutable_data_ptr();
  row_params.cross_entropy2 = per_sample2.mutable_data_ptr();
  row_params.row_state = static_cast<uint8_t*>(selected2.mutable_data_ptr());  // until the second selection replaces it
  row_params.compare_predictions = disagreement;

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
    run_rows_and_selection(row_params, first, target);
    run_selection(second, target);
  }
  return {loss,          per_sample1,   per_sample2,   selected1, selected2,
          num_selected1, num_selected2, num_nonfinite, statistics};
}

std::tuple<Tensor, Tensor> joint_loss(const Tensor& logits1, const Tensor& logits2, const Tensor& target,
                                      double co_lambda, std::optional<int64_t> ignore_index) {
  const CheckedPair checked = check_pair(logits1, logits2, target, co_lambda, ignore_index);
  const auto real = logits1.options().dtype(real_type(logits1));
  Tensor per_sample = at::empty({checked.pair.rows}, real);
  Tensor statistics = at::empty({checked.pair.rows, 4}, real);
  RowParams params{};
  params.pair = checked.pair;
  params.per_sample = per_sample.mutable_data_ptr();
  params.statistics = statistics.mutable_data_ptr();
  if (checked.pair.rows > 0) run_rows(params, target);
  return {per_sample, statistics};
}

Tensor select_small_loss(const Tensor& losses, std::optional<int64_t> num_keep,
                         const std::optional<Tensor>& num_keep_tensor, const std::optional<Tensor>& eligible) {
  logit_type(losses, "losses");
  TORCH_CHECK_VALUE(losses.dim() == 1, "losses has shape ", losses.sizes(), "; [batch] is accepted");
  Tensor ranked = losses.to(real_type(losses)).contiguous();  // widening a half type keeps the order and the ties
  Tensor mask;
  if (eligible.has_value()) {
    TORCH_CHECK_TYPE(eligible->scalar_type() == at::kBool, "eligible has dtype ", eligible->scalar_type(),
                     "; bool is accepted");
    TORCH_CHECK_VALUE(eligible->sizes() == losses.sizes(), "eligible has shape ", eligible->sizes(), " and losses ",
                      losses.sizes(), "; both must have the same");
    check_beside(*eligible, "eligible", losses, "losses");
    mask = eligible->contiguous();
  }
  SelectionParams params{};
  check_keep({std::nullopt, std::nullopt, num_keep, num_keep_tensor}, losses, params);
  Tensor selected = at::empty({losses.size(0)}, losses.options().dtype(at::kBool));
  params.is_double = ranked.scalar_type() == at::kDouble;
  params.rows = losses.size(0);
  params.losses = ranked.const_data_ptr();
  params.row_state = mask.defined() ? static_cast<const uint8_t*>(mask.const_data_ptr()) : nullptr;
  params.selected = static_cast<uint8_t*>(selected.mutable_data_ptr());
  if (params.rows > 0) run_selection(params, losses);
  return selected;
}

std::tuple<Tensor, Tensor> joint_loss_backward(
    const Tensor& grad, const Tensor& logits1, const Tensor& logits2, const Tensor& target, const Tensor& statistics,
    const std::optional<Tensor>& selected1, const std::optional<Tensor>& num_selected1,
    const std::optional<Tensor>& selected2, const std::optional<Tensor>& num_selected2, double co_lambda,
    std::optional<int64_t> ignore_index, bool needs_grad1, bool needs_grad2) {
  const CheckedPair checked = check_pair(logits1, logits2, target, co_lambda, ignore_index);
  TORCH_CHECK_TYPE(grad.scalar_type() == real_type(logits1) && statistics.scalar_type() == real_type(logits1),
                   "grad and statistics have dtypes ", grad.scalar_type(), " and ", statistics.scalar_type(), "; ",
                   real_type(logits1), " is accepted");
  TORCH_CHECK_VALUE(grad.dim() == 0 || (grad.dim() == 1 && grad.size(0) == logits1.size(0)), "grad has shape ",
                    grad.sizes(), "; [] or [", logits1.size(0), "] is accepted");
  const Tensor saved = as_saved(statistics), chosen1 = as_saved(selected1), chosen2 = as_saved(selected2);
  const Tensor count1 = as_saved(num_selected1), count2 = as_saved(num_selected2);
  const auto wanted = [&](bool needed) {
    return at::empty(needed ? logits1.sizes() : at::IntArrayRef{0}, logits1.options().memory_format(std::nullopt));
  };
  Tensor grad1 = wanted(needs_grad1), grad2 = wanted(needs_grad2);
  GradientParams params{};
  params.pair = checked.pair;
  params.statistics = saved.const_data_ptr();
  params.grad_output = grad.const_data_ptr();
  params.grad_stride = grad.dim() == 0 ? 0 : grad.stride(0);
  params.selected1 = static_cast<const uint8_t*>(data_or_null(chosen1));
  params.selected2 = static_cast<const uint8_t*>(data_or_null(chosen2));
  params.num_selected1 = static_cast<const int64_t*>(data_or_null(count1));
  params.num_selected2 = static_cast<const int64_t*>(data_or_null(count2));
  params.grad1 = needs_grad1 ? grad1.mutable_data_ptr() : nullptr;
  params.grad2 = needs_grad2 ? grad2.mutable_data_ptr() : nullptr;
  if (checked.pair.rows > 0 && (needs_grad1 || needs_grad2)) run_gradients(params, target);
  return {grad1, grad2};
}

TORCH_LIBRARY(jocor_fast, m) {
  m.def(
      "jocor_loss(Tensor logits1, Tensor logits2, Tensor target, float co_lambda, float? forget_rate, "
      "SymInt? num_keep, Tensor? num_keep_tensor, int? ignore_index) -> "
      "(Tensor loss, Tensor per_sample, Tensor selected, Tensor num_selected, Tensor num_nonfinite, Tensor statistics)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "decoupling_loss(Tensor logits1, Tensor logits2, Tensor target, int? ignore_index) -> "
      "(Tensor loss, Tensor per_sample, Tensor selected, Tensor num_selected, Tensor num_nonfinite, Tensor statistics)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "coteaching_loss(Tensor logits1, Tensor logits2, Tensor target, float? forget_rate, Tensor? forget_rate_tensor, "
      "SymInt? num_keep, Tensor? num_keep_tensor, bool round_down, bool disagreement, int? ignore_index) -> "
      "(Tensor loss, Tensor per_sample1, Tensor per_sample2, Tensor selected1, Tensor selected2, "
      "Tensor num_selected1, Tensor num_selected2, Tensor num_nonfinite, Tensor statistics)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "joint_loss(Tensor logits1, Tensor logits2, Tensor target, float co_lambda, int? ignore_index) -> "
      "(Tensor per_sample, Tensor statistics)",
      {at::Tag::pt2_compliant_tag});
  m.def("select_small_loss(Tensor losses, SymInt? num_keep, Tensor? num_keep_tensor, Tensor? eligible) -> Tensor",
        {at::Tag::pt2_compliant_tag});
  m.def(
      "joint_loss_backward(Tensor grad, Tensor logits1, Tensor logits2, Tensor target, Tensor statistics, "
      "Tensor? selected1, Tensor? num_selected1, Tensor? selected2, Tensor? num_selected2, "
      "float co_lambda, int? ignore_index, bool needs_grad1, bool needs_grad2) -> (Tensor grad1, Tensor grad2)",
      {at::Tag::pt2_compliant_tag});
}

void register_operators(torch::Library& m) {
  m.impl("jocor_loss", &jocor_loss);
  m.impl("decoupling_loss", &decoupling_loss);
  m.impl("coteaching_loss", &coteaching_loss);
  m.impl("joint_loss", &joint_loss);
  m.impl("select_small_loss", &select_small_loss);
  m.impl("joint_loss_backward", &joint_loss_backward);
}

TORCH_LIBRARY_IMPL(jocor_fast, CPU, m) { register_operators(m); }
#ifdef JOCOR_FAST_CUDA
TORCH_LIBRARY_IMPL(jocor_fast, CUDA, m) { register_operators(m); }
#endif

}  // namespace jocor_fast
