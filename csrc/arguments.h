// From tensors to the structs of joint_loss.h: every check of a tensor argument, and who keeps what alive. A wrong
// type is a TypeError, a wrong shape, device or value a ValueError; each message names the argument.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/Optional.h>

#include <cstdint>
#include <optional>
#include <string>

#include "joint_loss.h"
#include "joint_loss_math.h"

namespace jocor_fast {

using at::Tensor;

inline LogitType logit_type(const Tensor& logits, const char* name) {
  switch (logits.scalar_type()) {
    case at::kHalf:
      return LogitType::float16;
    case at::kBFloat16:
      return LogitType::bfloat16;
    case at::kFloat:
      return LogitType::float32;
    case at::kDouble:
      return LogitType::float64;
    default:
      break;
  }
  TORCH_CHECK_TYPE(false, name, " has dtype ", logits.scalar_type(),
                   "; float16, bfloat16, float32 and float64 are accepted");
}

inline LabelType label_type(const Tensor& target) {
  switch (target.scalar_type()) {
    case at::kByte:
      return LabelType::uint8;
    case at::kChar:
      return LabelType::int8;
    case at::kUInt16:
      return LabelType::uint16;
    case at::kShort:
      return LabelType::int16;
    case at::kUInt32:
      return LabelType::uint32;
    case at::kInt:
      return LabelType::int32;
    case at::kUInt64:
      return LabelType::uint64;
    case at::kLong:
      return LabelType::int64;
    default:
      break;
  }
  TORCH_CHECK_TYPE(false, "target has dtype ", target.scalar_type(), "; an integer type is accepted");
}

// Called before the dispatcher chooses a device's implementation: it would complain of its own affairs, or choose
// `meta`.
inline void check_beside(const Tensor& tensor, const char* name, const Tensor& other, const char* other_name) {
  TORCH_CHECK_VALUE(tensor.device() == other.device(), name, " is on ", tensor.device(), " and ", other_name, " on ",
                    other.device(), "; both must be on one device");
}

inline void check_one_device(const Tensor& logits1, const Tensor& logits2, const Tensor& target) {
  check_beside(logits2, "logits2", logits1, "logits1");
  check_beside(target, "target", logits1, "logits1");
}

// Losses and statistics: float32, float64 for float64 logits.
inline at::ScalarType real_type(const Tensor& logits) {
  return logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// A logit pair that the kernels can read, and the tensors that own its memory.
struct CheckedPair {
  Tensor logits1, logits2, target;
  LogitPair pair;
};

inline Tensor with_contiguous_columns(const Tensor& logits) {
  return logits.size(1) == 1 || logits.stride(1) == 1 ? logits : logits.contiguous();
}

// A tensor that a forward pass saved, as the kernels read it: hooks on saved tensors may hand back other strides, or a
// place in memory where no row of statistics can be loaded whole.
inline Tensor as_saved(const std::optional<Tensor>& tensor) {
  if (!tensor.has_value() || !tensor->defined()) return {};
  const Tensor saved = tensor->contiguous();
  const auto address = reinterpret_cast<uintptr_t>(saved.const_data_ptr());
  return address % alignof(RowStatistics<double>) == 0 ? saved : saved.clone();
}

inline void set_labels(LabelledRows& labelled, const Tensor& logits, const Tensor& target,
                       std::optional<int64_t> ignore_index) {
  labelled.rows = logits.size(0);
  labelled.classes = logits.size(1);
  labelled.label_type = label_type(target);
  labelled.labels = target.const_data_ptr();
  labelled.label_stride = target.stride(0);
  labelled.has_ignore_index = ignore_index.has_value();
  labelled.ignore_index = ignore_index.value_or(0);
}

// `or_else`: what is accepted beside the labels of classes.
inline void check_labels_are_valid(int64_t first_bad_row, const Tensor& target, int64_t classes, const char* or_else) {
  if (first_bad_row == cpu::kNoBadLabel) return;
  const at::Scalar label = target[first_bad_row].item();
  const bool is_signed = c10::isSignedType(target.scalar_type());
  TORCH_CHECK_VALUE(false, "target[", first_bad_row, "] is ",
                    is_signed ? std::to_string(label.to<int64_t>()) : std::to_string(label.to<uint64_t>()),
                    "; a label in [0, ", classes, ")", or_else, " is accepted");
}

inline CheckedPair check_pair(const Tensor& logits1, const Tensor& logits2, const Tensor& target, double co_lambda,
                              std::optional<int64_t> ignore_index) {
  const LogitType type = logit_type(logits1, "logits1");
  logit_type(logits2, "logits2");
  TORCH_CHECK_TYPE(logits1.scalar_type() == logits2.scalar_type(), "logits1 has dtype ", logits1.scalar_type(),
                   " and logits2 ", logits2.scalar_type(), "; both must have the same");
  label_type(target);
  TORCH_CHECK_VALUE(logits1.dim() == 2 && logits1.size(1) > 0, "logits1 has shape ", logits1.sizes(),
                    "; [batch, classes] with at least one class is accepted");
  TORCH_CHECK_VALUE(logits2.sizes() == logits1.sizes(), "logits2 has shape ", logits2.sizes(), " and logits1 ",
                    logits1.sizes(), "; both must have the same");
  TORCH_CHECK_VALUE(target.dim() == 1 && target.size(0) == logits1.size(0), "target has shape ", target.sizes(), "; [",
                    logits1.size(0), "], a label for each row of logits1, is accepted");
  check_one_device(logits1, logits2, target);
  TORCH_CHECK_VALUE(co_lambda >= 0.0 && co_lambda <= 1.0, "co_lambda is ", co_lambda,
                    "; a number in [0, 1] is accepted");

  CheckedPair checked{with_contiguous_columns(logits1), with_contiguous_columns(logits2), target, {}};
  LogitPair& pair = checked.pair;
  pair.type = type;
  pair.logits1 = checked.logits1.const_data_ptr();
  pair.logits2 = checked.logits2.const_data_ptr();
  pair.row_stride1 = checked.logits1.stride(0);
  pair.row_stride2 = checked.logits2.stride(0);
  set_labels(pair, logits1, target, ignore_index);
  // a lambda so small that float32 makes it 0 is 0: a term without weight is not evaluated
  pair.co_lambda = type != LogitType::float64 && static_cast<float>(co_lambda) == 0.0f ? 0.0 : co_lambda;
  return checked;
}

// How many rows to keep, as the operators take it: exactly one of the four is given.
struct Keep {
  std::optional<double> forget_rate;
  std::optional<Tensor> forget_rate_tensor;
  std::optional<int64_t> num_keep;
  std::optional<Tensor> num_keep_tensor;
};

// The value of a 0-d tensor, where the kernels read it.
template <class T>
const T* scalar_pointer(const Tensor& tensor, const char* name, const Tensor& rows) {
  const auto type = c10::CppTypeToScalarType<T>::value;
  TORCH_CHECK_TYPE(tensor.scalar_type() == type, name, " has dtype ", tensor.scalar_type(), "; a 0-d tensor of ", type,
                   " is accepted");
  TORCH_CHECK_VALUE(tensor.dim() == 0, name, " has shape ", tensor.sizes(), "; a 0-d tensor of ", type, " is accepted");
  check_beside(tensor, name, rows, "the losses");
  return tensor.const_data_ptr<T>();
}

inline void check_forget_rate(double forget_rate) {
  TORCH_CHECK_VALUE(forget_rate >= 0.0 && forget_rate < 1.0, "forget_rate is ", forget_rate,
                    "; a number in [0, 1) is accepted");
}

inline void check_num_keep(int64_t num_keep, int64_t least) {
  TORCH_CHECK_VALUE(num_keep >= least, "num_keep is ", num_keep, "; at least 1 is accepted");
}

// `rows` is the tensor whose first dimension is the batch; an empty batch may keep 0 rows.
inline void check_keep(const Keep& keep, const Tensor& rows, SelectionParams& selection) {
  const int64_t least = rows.size(0) == 0 ? 0 : 1;
  const int given = keep.forget_rate.has_value() + keep.forget_rate_tensor.has_value() + keep.num_keep.has_value() +
                    keep.num_keep_tensor.has_value();
  TORCH_CHECK_TYPE(given == 1, "exactly one of forget_rate and num_keep must be given");
  selection.num_keep = -1;
  // a value on a GPU cannot be looked at without waiting for it; there k is clamped
  if (keep.forget_rate) {
    check_forget_rate(*keep.forget_rate);
    selection.forget_rate = *keep.forget_rate;
  } else if (keep.forget_rate_tensor) {
    selection.forget_rate_pointer = scalar_pointer<double>(*keep.forget_rate_tensor, "forget_rate", rows);
    if (rows.is_cpu()) check_forget_rate(*selection.forget_rate_pointer);
  } else if (keep.num_keep) {
    check_num_keep(*keep.num_keep, least);
    selection.num_keep = *keep.num_keep;
  } else {
    selection.num_keep_pointer = scalar_pointer<int64_t>(*keep.num_keep_tensor, "num_keep", rows);
    if (rows.is_cpu()) check_num_keep(*selection.num_keep_pointer, least);
  }
}

}  // namespace jocor_fast
