// How a row's label is read, on every device: any integer type, any stride.
#pragma once

#include "joint_loss.h"
#include "joint_loss_math.h"

namespace jocor_fast {

struct Label {
  int64_t value;
  bool ignored;
  bool valid;  // in [0, classes)
};

template <class Integer>
JF_INLINE int64_t label_at(const LogitPair& pair, int64_t row) {
  return static_cast<int64_t>(static_cast<const Integer*>(pair.labels)[row * pair.label_stride]);
}

JF_INLINE int64_t label_value(const LogitPair& pair, int64_t row) {
  switch (pair.label_type) {
    case LabelType::uint8:
      return label_at<uint8_t>(pair, row);
    case LabelType::int8:
      return label_at<int8_t>(pair, row);
    case LabelType::uint16:
      return label_at<uint16_t>(pair, row);
    case LabelType::int16:
      return label_at<int16_t>(pair, row);
    case LabelType::uint32:
      return label_at<uint32_t>(pair, row);
    case LabelType::int32:
      return label_at<int32_t>(pair, row);
    case LabelType::uint64:  // past int64 it turns negative, which is as invalid, and no ignore_index
    case LabelType::int64:
      break;
  }
  return label_at<int64_t>(pair, row);
}

JF_INLINE Label as_label(const LogitPair& pair, int64_t value) {
  const bool past_int64 = value < 0 && pair.label_type == LabelType::uint64;
  const bool ignored = pair.has_ignore_index && value == pair.ignore_index && !past_int64;
  return {value, ignored, !ignored && value >= 0 && value < pair.classes};
}

JF_INLINE Label read_label(const LogitPair& pair, int64_t row) { return as_label(pair, label_value(pair, row)); }

}  // namespace jocor_fast
