// jocor_fast._C. Importing it registers the operators; beside them it exposes the three steps without autograd and
// without the dispatcher, for the benches, and what this build is.
#include <torch/csrc/utils/pybind.h>

#include "joint_loss.h"
#include "joint_loss_math.h"
#include "operator_handle.h"
#include "ops.h"

namespace {

// torch.ops.jocor_fast.jocor_loss without its Python front: 3 of 53 us at 128 x 10, forward and backward. It goes
// through the dispatcher, so that autograd and every mode see it; torch.compile cannot look into it and takes the
// other. The losses below alike.
auto jocor_loss_eager(const at::Tensor& logits1, const at::Tensor& logits2, const at::Tensor& target, double co_lambda,
                      std::optional<double> forget_rate, std::optional<int64_t> num_keep,
                      const std::optional<at::Tensor>& num_keep_tensor, std::optional<int64_t> ignore_index) {
  static const auto op = jocor_fast::operator_handle<jocor_fast::JocorLossOperator>("jocor_fast::jocor_loss");
  auto [loss, per_sample, selected, num_selected, num_nonfinite, statistics] =
      op.call(logits1, logits2, target, co_lambda, forget_rate, num_keep, num_keep_tensor, ignore_index);
  return std::make_tuple(loss, per_sample, selected, num_selected, num_nonfinite);
}

auto decoupling_loss_eager(const at::Tensor& logits1, const at::Tensor& logits2, const at::Tensor& target,
                           std::optional<int64_t> ignore_index) {
  static const auto op =
      jocor_fast::operator_handle<decltype(jocor_fast::decoupling_loss)>("jocor_fast::decoupling_loss");
  auto [loss, per_sample, selected, num_selected, num_nonfinite, statistics] =
      op.call(logits1, logits2, target, ignore_index);
  return std::make_tuple(loss, per_sample, selected, num_selected, num_nonfinite);
}

auto forward_corrected_loss_eager(const at::Tensor& logits, const at::Tensor& target,
                                  const at::Tensor& log_transition_t, bool mean) {
  static const auto op =
      jocor_fast::operator_handle<jocor_fast::ForwardCorrectedOperator>("jocor_fast::forward_corrected_loss");
  auto [loss, per_sample, num_nonfinite, statistics] = op.call(logits, target, log_transition_t, mean);
  return std::make_tuple(loss, per_sample, num_nonfinite);
}

auto coteaching_loss_eager(const at::Tensor& logits1, const at::Tensor& logits2, const at::Tensor& target,
                           std::optional<double> forget_rate, const std::optional<at::Tensor>& forget_rate_tensor,
                           std::optional<int64_t> num_keep, const std::optional<at::Tensor>& num_keep_tensor,
                           bool round_down, bool disagreement, std::optional<int64_t> ignore_index) {
  static const auto op = jocor_fast::operator_handle<jocor_fast::CoteachingLossOperator>("jocor_fast::coteaching_loss");
  auto [loss, per_sample1, per_sample2, selected1, selected2, num_selected1, num_selected2, num_nonfinite, statistics] =
      op.call(logits1, logits2, target, forget_rate, forget_rate_tensor, num_keep, num_keep_tensor, round_down,
              disagreement, ignore_index);
  return std::make_tuple(loss, per_sample1, per_sample2, selected1, selected2, num_selected1, num_selected2,
                         num_nonfinite);
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  namespace py = pybind11;
  m.doc() = "Compiled kernels of jocor_fast; the public interface is the Python package.";
  m.def("jocor_loss", &jocor_loss_eager, py::call_guard<py::gil_scoped_release>(),
        "The operator jocor_loss, called straight; without its last result.");
  m.def("decoupling_loss", &decoupling_loss_eager, py::call_guard<py::gil_scoped_release>(),
        "The operator decoupling_loss, called straight; without its last result.");
  m.def("coteaching_loss", &coteaching_loss_eager, py::call_guard<py::gil_scoped_release>(),
        "The operator coteaching_loss, called straight; without its last result.");
  m.def("forward_corrected_loss", &forward_corrected_loss_eager, py::call_guard<py::gil_scoped_release>(),
        "The operator forward_corrected_loss, called straight; without its last result.");
  m.def("joint_loss_forward", &jocor_fast::joint_loss, py::arg("logits1"), py::arg("logits2"), py::arg("target"),
        py::arg("co_lambda"), py::arg("ignore_index") = std::nullopt, "Step 1: per-sample loss and row statistics.");
  m.def(
      "select_small_loss",
      [](const at::Tensor& losses, int64_t num_keep) {
        return jocor_fast::select_small_loss(losses, num_keep, std::nullopt, std::nullopt);
      },
      py::arg("losses"), py::arg("num_keep"), "Step 2: mask of the rows with the smallest finite losses.");
  m.def(
      "joint_loss_backward",
      [](const at::Tensor& grad, const at::Tensor& logits1, const at::Tensor& logits2, const at::Tensor& target,
         const at::Tensor& statistics, const at::Tensor& selected, const at::Tensor& num_selected, double co_lambda) {
        return jocor_fast::joint_loss_backward(grad, logits1, logits2, target, statistics, selected, num_selected,
                                               selected, num_selected, co_lambda, std::nullopt, true, true);
      },
      py::arg("grad"), py::arg("logits1"), py::arg("logits2"), py::arg("target"), py::arg("statistics"),
      py::arg("selected"), py::arg("num_selected"), py::arg("co_lambda"),
      "Step 3: gradients of the mean loss of the selected rows.");
  m.def("num_keep", &jocor_fast::num_keep, py::arg("n"), py::arg("forget_rate"), py::arg("round_up"));
  m.def("cpu_instruction_set", &jocor_fast::cpu::instruction_set, "The one in use.");
  m.def("cpu_instruction_sets", &jocor_fast::cpu::instruction_sets, "Those compiled in.");
#ifdef JOCOR_FAST_CUDA
  m.attr("has_cuda") = true;
#else
  m.attr("has_cuda") = false;
#endif
}
