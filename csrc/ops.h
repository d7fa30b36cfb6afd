// The operators of torch.ops.jocor_fast as C++ functions, without autograd and without the dispatcher. Their schemas
// stand in ops.cpp, forward_correction.cpp and robust_loss.cpp. num_keep may be a symbol while torch.compile traces.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <tuple>

namespace jocor_fast {

using at::Tensor;

// -> loss [], per_sample [B], selected [B], num_selected [], num_nonfinite [], statistics [B, 4]
using JocorLossResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
JocorLossResult jocor_loss(const Tensor& logits1, const Tensor& logits2, const Tensor& target,
                           std::optional<int64_t> ignore_index, double co_lambda, std::optional<double> forget_rate,
                           std::optional<c10::SymInt> num_keep, const std::optional<Tensor>& num_keep_tensor,
                           bool only_differing);

// -> loss [], per_sample1 [B], per_sample2 [B], selected1 [B], selected2 [B], num_selected1 [], num_selected2 [],
// num_nonfinite [], statistics [B, 4]
using CoteachingLossResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
CoteachingLossResult coteaching_loss(const Tensor& logits1, const Tensor& logits2, const Tensor& target,
                                     std::optional<int64_t> ignore_index, std::optional<double> forget_rate,
                                     const std::optional<Tensor>& forget_rate_tensor,
                                     std::optional<c10::SymInt> num_keep, const std::optional<Tensor>& num_keep_tensor,
                                     bool round_down, bool disagreement);

// -> per_sample [B], statistics [B, 4]
using JointLossResult = std::tuple<Tensor, Tensor>;
JointLossResult joint_loss(const Tensor& logits1, const Tensor& logits2, const Tensor& target,
                           std::optional<int64_t> ignore_index, double co_lambda);

// -> gradients of both logits [B, C]; of one that is not needed, an empty tensor [0]. grad is 0-d or [B].
std::tuple<Tensor, Tensor> joint_loss_backward(const Tensor& grad, const Tensor& logits1, const Tensor& logits2,
                                               const Tensor& target, std::optional<int64_t> ignore_index,
                                               double co_lambda, const Tensor& statistics,
                                               const std::optional<Tensor>& selected1,
                                               const std::optional<Tensor>& num_selected1,
                                               const std::optional<Tensor>& selected2,
                                               const std::optional<Tensor>& num_selected2, bool needs_grad1,
                                               bool needs_grad2);

// -> selected [B]
Tensor select_small_loss(const Tensor& losses, std::optional<c10::SymInt> num_keep,
                         const std::optional<Tensor>& num_keep_tensor, const std::optional<Tensor>& eligible);

// -> loss [] or [B], per_sample [B] or [0], num_nonfinite [], statistics; log_transition_t [C, C]: row y holds
// log T[:, y]
using ForwardCorrectedResult = std::tuple<Tensor, Tensor, Tensor, Tensor>;
ForwardCorrectedResult forward_corrected_loss(const Tensor& logits, const Tensor& target,
                                              const Tensor& log_transition_t, bool mean);

// -> loss [] or [B], per_sample [B] or [0], selected [B] or [0], num_selected [] or [0], num_nonfinite [] or [0],
// statistics [B, 4]; `kind` is a RobustKind
using RobustLossResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
RobustLossResult robust_loss(const Tensor& logits, const Tensor& target, std::optional<int64_t> ignore_index,
                             int64_t kind, double a, double b, bool sieve, bool mean);

// The operators as eager mode calls them: they bypass the dispatcher where it has nothing to add, and compute the
// gradients of a small batch together with its loss.
JocorLossResult jocor_loss_eagerly(const Tensor& logits1, const Tensor& logits2, const Tensor& target,
                                   std::optional<int64_t> ignore_index, double co_lambda,
                                   std::optional<double> forget_rate, std::optional<c10::SymInt> num_keep,
                                   const std::optional<Tensor>& num_keep_tensor, bool only_differing);
CoteachingLossResult coteaching_loss_eagerly(const Tensor& logits1, const Tensor& logits2, const Tensor& target,
                                             std::optional<int64_t> ignore_index, std::optional<double> forget_rate,
                                             const std::optional<Tensor>& forget_rate_tensor,
                                             std::optional<c10::SymInt> num_keep,
                                             const std::optional<Tensor>& num_keep_tensor, bool round_down,
                                             bool disagreement);

// The registered operator of one of these functions. Its `call` goes through the dispatcher: autograd, torch.compile
// and every mode see it.
template <class Result, class... Arguments>
auto operator_of(Result (*)(Arguments...), const char* name) {
  const std::string qualified = std::string("jocor_fast::") + name;
  return c10::Dispatcher::singleton().findSchemaOrThrow(qualified.c_str(), "").typed<Result(Arguments...)>();
}

}  // namespace jocor_fast
