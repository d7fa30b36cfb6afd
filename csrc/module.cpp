// The module jocor_fast._C. Importing it registers the operators. It exposes them without their Python front; the three
// steps without autograd and the dispatcher, for the benches; and what this build is.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/csrc/utils/pybind.h>

#include <tuple>
#include <utility>

#include "joint_loss.h"
#include "joint_loss_math.h"
#include "ops.h"

namespace {

namespace py = pybind11;
using at::Tensor;

template <class... Results, size_t... I>
auto first_of(const std::tuple<Results...>& results, std::index_sequence<I...>) {
  return std::make_tuple(std::get<I>(results)...);
}

// All results but the last, the statistics, which serve the gradient alone.
template <class... Results>
auto for_callers(const std::tuple<Results...>& results) {
  return first_of(results, std::make_index_sequence<sizeof...(Results) - 1>{});
}

Tensor for_callers(const Tensor& result) { return result; }

// torch.ops.jocor_fast.<name> without its Python front, which takes host time. Autograd and every mode see the call;
// torch.compile cannot look into it and takes torch.ops.
template <class Result, class... Arguments>
void def_operator(py::module_& m, const char* name, Result (*kernel)(Arguments...)) {
  m.def(
      name,
      [op = jocor_fast::operator_of(kernel, name)](Arguments... arguments) {
        return for_callers(op.call(arguments...));
      },
      py::call_guard<py::gil_scoped_release>());
}

template <class Result, class... Arguments>
void def_eager(py::module_& m, const char* name, Result (*function)(Arguments...)) {
  m.def(
      name, [function](Arguments... arguments) { return for_callers(function(arguments...)); },
      py::call_guard<py::gil_scoped_release>());
}

// torch.set_flush_denormal reaches the calling thread alone; this also sets the threads that compute with it.
bool set_flush_denormal(bool on) {
  at::parallel_for(0, at::get_num_threads(), 1, [on](int64_t, int64_t) { at::Context::setFlushDenormal(on); });
  return at::Context::setFlushDenormal(on);
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "Compiled kernels of jocor_fast; the public interface is the Python package.";
  py::module_ operators = m.def_submodule("operators", "Operators called straight, without their statistics.");
  def_eager(operators, "jocor_loss", &jocor_fast::jocor_loss_eagerly);
  def_eager(operators, "coteaching_loss", &jocor_fast::coteaching_loss_eagerly);
  def_operator(operators, "joint_loss", &jocor_fast::joint_loss);
  def_operator(operators, "select_small_loss", &jocor_fast::select_small_loss);
  def_operator(operators, "forward_corrected_loss", &jocor_fast::forward_corrected_loss);
  def_operator(operators, "robust_loss", &jocor_fast::robust_loss);

  m.def(
      "joint_loss_forward",
      [](const Tensor& logits1, const Tensor& logits2, const Tensor& target, double co_lambda,
         std::optional<int64_t> ignore_index) {
        return jocor_fast::joint_loss(logits1, logits2, target, ignore_index, co_lambda);
      },
      py::arg("logits1"), py::arg("logits2"), py::arg("target"), py::arg("co_lambda"),
      py::arg("ignore_index") = std::nullopt, "Step 1: per-sample loss and row statistics.");
  m.def(
      "select_small_loss",
      [](const Tensor& losses, int64_t num_keep) {
        return jocor_fast::select_small_loss(losses, num_keep, std::nullopt, std::nullopt);
      },
      py::arg("losses"), py::arg("num_keep"), "Step 2: mask of the rows with the smallest finite losses.");
  m.def(
      "joint_loss_backward",
      [](const Tensor& grad, const Tensor& logits1, const Tensor& logits2, const Tensor& target,
         const Tensor& statistics, const Tensor& selected, const Tensor& num_selected, double co_lambda) {
        return jocor_fast::joint_loss_backward(grad, logits1, logits2, target, std::nullopt, co_lambda, statistics,
                                               selected, num_selected, selected, num_selected, true, true);
      },
      py::arg("grad"), py::arg("logits1"), py::arg("logits2"), py::arg("target"), py::arg("statistics"),
      py::arg("selected"), py::arg("num_selected"), py::arg("co_lambda"),
      "Step 3: gradients of the mean loss of the selected rows.");
  m.def("set_flush_denormal", &set_flush_denormal, py::arg("on"), py::call_guard<py::gil_scoped_release>(),
        "Let torch's threads on the CPU take denormal numbers as 0, or not; returns whether the processor can.");
  m.def("num_keep", &jocor_fast::num_keep, py::arg("n"), py::arg("forget_rate"), py::arg("round_up"));
  m.def("cpu_instruction_set", &jocor_fast::cpu::instruction_set, "The one in use.");
  m.def("cpu_instruction_sets", &jocor_fast::cpu::instruction_sets, "Those compiled in.");
#ifdef JOCOR_FAST_CUDA
  m.attr("has_cuda") = true;
#else
  m.attr("has_cuda") = false;
#endif
}
