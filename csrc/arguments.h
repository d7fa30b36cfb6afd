// From tensors to the structs of joint_loss.h: every check of a tensor argument, and what keeps its memory alive. A
// wrong type is a TypeError, a wrong shape, device or value a ValueError; the messages are those of reference.py.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/Optional.h>

#include <cstdint>
#include <optional>
#include <string>

#include "joint_loss.h"
#include "joint_loss_math.h"
#include "labels.h"

namespace jocor_fast {

using at::Tensor;

inline std::string dtype_name(const Tensor& tensor) {
  return std::string(c10::getDtypeNames(tensor.scalar_type()).first);
}

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
  TORCH_CHECK_TYPE(false, name, " must be of type float16, bfloat16, float32 or float64, got ", dtype_name(logits));
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
  TORCH_CHECK_TYPE(false, "target must be of an integer type, got ", dtype_name(target));
}

inline void check_same_device(const Tensor& tensor, const char* name, const Tensor& other, const char* other_name) {
  TORCH_CHECK_VALUE(tensor.device() == other.device(), name, " must be on ", other.device(), " like ", other_name,
                    ", got ", tensor.device());
}

// Losses and statistics: float32, float64 for float64 logits.
inline at::ScalarType real_type(const Tensor& logits) {
  return logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// A contiguous tensor without values on the device of `other`. On the CPU it is made without the dispatcher, which
// would take a tenth of a small batch's time.
inline Tensor new_tensor(at::IntArrayRef sizes, at::ScalarType type, const Tensor& other) {
  if (other.is_cpu()) return at::detail::empty_cpu(sizes, type);
  return at::empty(sizes, other.options().dtype(type).memory_format(std::nullopt));
}

inline void check_logits(const Tensor& logits, const char* name) {
  TORCH_CHECK_VALUE(logits.dim() == 2 && logits.size(1) > 0, name,
                    " must have shape [batch, classes] with at least one class, got ", logits.sizes());
}

inline void check_target(const Tensor& target, const Tensor& logits, const char* name) {
  label_type(target);
  TORCH_CHECK_VALUE(target.dim() == 1 && target.size(0) == logits.size(0), "target must have shape [", logits.size(0),
                    "] like the rows of ", name, ", got ", target.sizes());
  check_same_device(target, "target", logits, name);
}

inline Tensor with_contiguous_columns(const Tensor& logits) {
  return logits.size(1) == 1 || logits.stride(1) == 1 ? logits : logits.contiguous();
}

// A tensor that a forward pass saved, as the kernels read it: hooks on saved tensors may return one with other strides,
// or at an address that is not aligned for a row of statistics.
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

[[noreturn]] inline void raise_invalid_label(const LabelledRows& rows, int64_t row) {
  const int64_t label = label_value(rows, row);
  const bool past_int64 = label < 0 && rows.label_type == LabelType::uint64;
  TORCH_CHECK_VALUE(false, "target must hold labels in [0, ", rows.classes, ")",
                    rows.has_ignore_index ? " or ignore_index" : "", ", got ",
                    past_int64 ? std::to_string(static_cast<uint64_t>(label)) : std::to_string(label), " in row ", row);
}

// A logit pair that the kernels can read, and the tensors that own its memory.
struct CheckedPair {
  Tensor logits1, logits2, target;
  LogitPair pair;
};

inline CheckedPair check_pair(const Tensor& logits1, const Tensor& logits2, const Tensor& target,
                              std::optional<int64_t> ignore_index, const JointLossSettings& loss) {
  const LogitType type = logit_type(logits1, "logits1");
  logit_type(logits2, "logits2");
  TORCH_CHECK_TYPE(logits1.scalar_type() == logits2.scalar_type(), "logits2 must be of type ", dtype_name(logits1),
                   " like logits1, got ", dtype_name(logits2));
  check_logits(logits1, "logits1");
  TORCH_CHECK_VALUE(logits2.sizes() == logits1.sizes(), "logits2 must have shape ", logits1.sizes(),
                    " like logits1, got ", logits2.sizes());
  check_same_device(logits2, "logits2", logits1, "logits1");
  check_target(target, logits1, "logits1");
  TORCH_CHECK_VALUE(loss.co_lambda >= 0.0 && loss.co_lambda <= 1.0, "co_lambda must lie in [0, 1], got ",
                    loss.co_lambda);

  CheckedPair checked{with_contiguous_columns(logits1), with_contiguous_columns(logits2), target, {}};
  LogitPair& pair = checked.pair;
  pair.type = type;
  pair.logits1 = checked.logits1.const_data_ptr();
  pair.logits2 = checked.logits2.const_data_ptr();
  pair.row_stride1 = checked.logits1.stride(0);
  pair.row_stride2 = checked.logits2.stride(0);
  set_labels(pair, logits1, target, ignore_index);
  static_cast<JointLossSettings&>(pair) = loss;
  // a lambda so small that float32 makes it 0 is 0: a term without weight is not evaluated
  if (type != LogitType::float64 && static_cast<float>(loss.co_lambda) == 0.0f) pair.co_lambda = 0.0;
  return checked;
}

// Checks what a gradient takes from above (grad) and from its forward pass (statistics).
inline void check_backward(const Tensor& grad, const Tensor& statistics, const Tensor& logits) {
  const auto real = real_type(logits);
  TORCH_CHECK_TYPE(grad.scalar_type() == real && statistics.scalar_type() == real,
                   "grad and statistics must be of type ", real, ", got ", grad.scalar_type(), " and ",
                   statistics.scalar_type());
  TORCH_CHECK_VALUE(grad.dim() == 0 || (grad.dim() == 1 && grad.size(0) == logits.size(0)),
                    "grad must have shape [] or [", logits.size(0), "], got ", grad.sizes());
}

// How many rows to keep, as the operators take it: exactly one of the four is given.
struct Keep {
  std::optional<double> forget_rate;
  std::optional<Tensor> forget_rate_tensor;
  std::optional<int64_t> num_keep;
  std::optional<Tensor> num_keep_tensor;
};

// The address of a 0-d tensor's value, from which the kernels read it.
template <class T>
const T* scalar_pointer(const Tensor& tensor, const char* name, const Tensor& rows) {
  constexpr const char* type = std::is_same_v<T, double> ? "float64" : "int64";
  TORCH_CHECK_TYPE(tensor.scalar_type() == c10::CppTypeToScalarType<T>::value, name, " must be a 0-d ", type,
                   " tensor, got one of ", dtype_name(tensor));
  TORCH_CHECK_VALUE(tensor.dim() == 0, name, " must be a 0-d ", type, " tensor, got shape ", tensor.sizes());
  check_same_device(tensor, name, rows, "the losses");
  return tensor.const_data_ptr<T>();
}

inline void check_forget_rate(double forget_rate) {
  TORCH_CHECK_VALUE(forget_rate >= 0.0 && forget_rate < 1.0, "forget_rate must lie in [0, 1), got ", forget_rate);
}

inline void check_num_keep(int64_t num_keep, int64_t least) {
  TORCH_CHECK_VALUE(num_keep >= least, "num_keep must be at least 1, got ", num_keep);
}

// `rows` is the tensor whose first dimension is the batch; an empty batch may keep 0 rows.
inline void check_keep(const Keep& keep, const Tensor& rows, SelectionParams& selection) {
  const int64_t least = rows.size(0) == 0 ? 0 : 1;
  const int given = keep.forget_rate.has_value() + keep.forget_rate_tensor.has_value() + keep.num_keep.has_value() +
                    keep.num_keep_tensor.has_value();
  TORCH_CHECK_TYPE(given == 1, "exactly one of forget_rate and num_keep must be given");
  selection.num_keep = -1;
  // a value on a GPU cannot be checked without waiting for it; there k is clamped
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
