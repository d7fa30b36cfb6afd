// The joint loss on LibTorch's stable ABI, by the kernels of csrc/cpu. Contiguous float32 logits and int64 labels
// alone, and none of the checks of csrc/arguments.h: it costs less than the whole would.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include "joint_loss.h"

using namespace jocor_fast;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

static LogitPair pair_of(const Tensor& logits1, const Tensor& logits2, const Tensor& target, double co_lambda) {
  LogitPair pair{};
  pair.rows = logits1.size(0);
  pair.classes = pair.row_stride1 = pair.row_stride2 = logits1.size(1);
  pair.label_type = LabelType::int64;
  pair.labels = target.const_data_ptr();
  pair.label_stride = 1;
  pair.co_lambda = co_lambda;
  pair.type = LogitType::float32;
  pair.logits1 = logits1.const_data_ptr();
  pair.logits2 = logits2.const_data_ptr();
  return pair;
}

using Six = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

static Six loss(Tensor logits1, Tensor logits2, Tensor target, double co_lambda, double forget_rate) {
  const int64_t rows = logits1.size(0);
  const auto empty = [&](std::initializer_list<int64_t> size, ScalarType type) {
    return torch::stable::new_empty(logits1, size, type);
  };
  Tensor mean = empty({}, ScalarType::Float), per_sample = empty({rows}, ScalarType::Float);
  Tensor statistics = empty({rows, 4}, ScalarType::Float), selected = empty({rows}, ScalarType::Bool);
  Tensor num_selected = empty({}, ScalarType::Long), num_nonfinite = empty({}, ScalarType::Long);
  RowParams row_params{};
  row_params.pair = pair_of(logits1, logits2, target, co_lambda);
  row_params.per_sample = per_sample.mutable_data_ptr();
  row_params.statistics = statistics.mutable_data_ptr();
  row_params.row_state = static_cast<uint8_t*>(selected.mutable_data_ptr());
  SelectionParams selection{};
  selection.rows = rows;
  selection.losses = selection.mean_of = row_params.per_sample;
  selection.row_state = selection.selected = row_params.row_state;
  selection.num_keep = -1;
  selection.forget_rate = forget_rate;
  selection.num_selected = static_cast<int64_t*>(num_selected.mutable_data_ptr());
  selection.num_nonfinite = static_cast<int64_t*>(num_nonfinite.mutable_data_ptr());
  selection.mean = mean.mutable_data_ptr();
  cpu::row_losses(row_params, 0, rows);
  cpu::select_small_loss(selection);
  return {mean, per_sample, selected, num_selected, num_nonfinite, statistics};
}

static std::tuple<Tensor, Tensor> loss_backward(Tensor grad, Tensor logits1, Tensor logits2, Tensor target,
                                                double co_lambda, Tensor statistics, Tensor selected, Tensor count) {
  Tensor grad1 = torch::stable::empty_like(logits1), grad2 = torch::stable::empty_like(logits2);
  GradientParams params{};
  params.pair = pair_of(logits1, logits2, target, co_lambda);
  params.statistics = statistics.const_data_ptr();
  params.grad_output = grad.const_data_ptr();
  params.selected1 = params.selected2 = static_cast<const uint8_t*>(selected.const_data_ptr());
  params.num_selected1 = params.num_selected2 = static_cast<const int64_t*>(count.const_data_ptr());
  params.grad1 = grad1.mutable_data_ptr();
  params.grad2 = grad2.mutable_data_ptr();
  cpu::row_gradients(params, 0, params.pair.rows);
  return {grad1, grad2};
}

STABLE_TORCH_LIBRARY(jocor_fast_stable, m) {
  m.def("loss(Tensor a, Tensor b, Tensor y, float l, float r) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "loss_backward(Tensor g, Tensor a, Tensor b, Tensor y, float l, Tensor s, Tensor t, Tensor n) -> (Tensor, "
      "Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(jocor_fast_stable, CPU, m) {
  m.impl("loss", TORCH_BOX(&loss));
  m.impl("loss_backward", TORCH_BOX(&loss_backward));
}
