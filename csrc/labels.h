// How a row's label is read, on every device: any integer type, any stride.
#pragma once

#include <type_traits>

#include "joint_loss.h"
#include "joint_loss_math.h"

namespace jocor_fast {

struct Label {
  int64_t value;
  bool ignored;
  bool valid;  // in [0, classes)
};

// `Narrow`: the type to which labels of fewer than 64 bits are extended first.
template <class Integer, class Narrow>
JF_INLINE int64_t label_at(const LabelledRows& rows, int64_t row) {
  using Word = std::conditional_t<sizeof(Integer) == 8, int64_t, Narrow>;
  return static_cast<int64_t>(static_cast<Word>(static_cast<const Integer*>(rows.labels)[row * rows.label_stride]));
}

template <class Narrow = int64_t>
JF_INLINE int64_t label_value(const LabelledRows& rows, int64_t row) {
  switch (rows.label_type) {
    case LabelType::uint8:
      return label_at<uint8_t, Narrow>(rows, row);
    case LabelType::int8:
      return label_at<int8_t, Narrow>(rows, row);
    case LabelType::uint16:
      return label_at<uint16_t, Narrow>(rows, row);
    case LabelType::int16:
      return label_at<int16_t, Narrow>(rows, row);
    case LabelType::uint32:
      return label_at<uint32_t, Narrow>(rows, row);
    case LabelType::int32:
      return label_at<int32_t, Narrow>(rows, row);
    case LabelType::uint64:  // past int64 it turns negative, which is as invalid, and no ignore_index
    case LabelType::int64:
      break;
  }
  return label_at<int64_t, Narrow>(rows, row);
}

JF_INLINE Label as_label(const LabelledRows& rows, int64_t value) {
  const bool past_int64 = value < 0 && rows.label_type == LabelType::uint64;
  const bool ignored = rows.has_ignore_index && value == rows.ignore_index && !past_int64;
  return {value, ignored, !ignored && value >= 0 && value < rows.classes};
}

JF_INLINE Label read_label(const LabelledRows& rows, int64_t row) { return as_label(rows, label_value(rows, row)); }

// A label whose load is issued and whose value is not used yet. Loads extend to 32 bits by themselves; extending a
// signed label to 64 takes an instruction of its own, which would wait for the load and hold up every load that the
// thread issues after it.
struct PendingLabel {
  int64_t low;

  JF_INLINE PendingLabel(const LabelledRows& rows, int64_t row) : low(label_value<uint32_t>(rows, row)) {}

  JF_INLINE Label arrived(const LabelledRows& rows) const {
    const LabelType type = rows.label_type;
    const bool in_32_bits = type == LabelType::int8 || type == LabelType::int16 || type == LabelType::int32;
    const int unused = in_32_bits ? 32 : 0;
    return as_label(rows, static_cast<int64_t>(static_cast<uint64_t>(low) << unused) >> unused);
  }
};

}  // namespace jocor_fast
