// The operators of torch.ops.jocor_fast as C++ functions, without autograd and without the dispatcher.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace jocor_fast {

using at::Tensor;

// -> loss [], per_sample [B], selected [B], num_selected [], num_nonfinite [], statistics [B, 4]
using JocorLossResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
JocorLossResult jocor_loss(const Tensor& logits1, const Tensor& logits2, const Tensor& target, double co_lambda,
                           std::optional<double> forget_rate, std::optional<int64_t> num_keep,
                           const std::optional<Tensor>& num_keep_tensor, std::optional<int64_t> ignore_index);

// The same as the dispatcher calls it: num_keep may be a symbol while torch.compile traces.
using JocorLossOperator = JocorLossResult(const Tensor&, const Tensor&, const Tensor&, double, std::optional<double>,
                                          std::optional<c10::SymInt>, const std::optional<Tensor>&,
                                          std::optional<int64_t>);

// The cross-entropies of the rows on which the two predictions differ -> as jocor_loss
JocorLossResult decoupling_loss(const Tensor& logits1, const Tensor& logits2, const Tensor& target,
                                std::optional<int64_t> ignore_index);

// loss [], per_sample1 [B], per_sample2 [B], selected1 [B], selected2 [B], num_selected1 [], num_selected2 [],
// num_nonfinite [], statistics [B, 4]
using CoteachingLossResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
CoteachingLossResult coteaching_loss(const Tensor& logits1, const Tensor& logits2, const Tensor& target,
                                     std::optional<double> forget_rate, const std::optional<Tensor>& forget_rate_tensor,
                                     std::optional<int64_t> num_keep, const std::optional<Tensor>& num_keep_tensor,
                                     bool round_down, bool disagreement, std::optional<int64_t> ignore_index);

using CoteachingLossOperator = CoteachingLossResult(const Tensor&, const Tensor&, const Tensor&, std::optional<double>,
                                                    const std::optional<Tensor>&, std::optional<c10::SymInt>,
                                                    const std::optional<Tensor>&, bool, bool, std::optional<int64_t>);

// -> per_sample [B], statistics [B, 4]
std::tuple<Tensor, Tensor> joint_loss(const Tensor& logits1, const Tensor& logits2, const Tensor& target,
                                      double co_lambda, std::optional<int64_t> ignore_index);

// -> loss [] or [B], per_sample [B] or [0], num_nonfinite [], statistics; log_transition_t [C, C]: row y holds
// log T[:, y] (in forward_correction.cpp)
using ForwardCorrectedResult = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using ForwardCorrectedOperator = ForwardCorrectedResult(const Tensor&, const Tensor&, const Tensor&, bool);

// -> selected [B]
Tensor select_small_loss(const Tensor& losses, std::optional<int64_t> num_keep,
                         const std::optional<Tensor>& num_keep_tensor, const std::optional<Tensor>& eligible);

// -> gradients of both logits [B, C]; of one that is not needed, an empty tensor [0]. grad is 0-d or [B].
std::tuple<Tensor, Tensor> joint_loss_backward(const Tensor& grad, const Tensor& logits1, const Tensor& logits2,
                                               const Tensor& target, const Tensor& statistics,
                                               const std::optional<Tensor>& selected1,
                                               const std::optional<Tensor>& num_selected1,
                                               const std::optional<Tensor>& selected2,
                                               const std::optional<Tensor>& num_selected2, double co_lambda,
                                               std::optional<int64_t> ignore_index, bool needs_grad1, bool needs_grad2);

}  // namespace jocor_fast
