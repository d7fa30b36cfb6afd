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

JF_INLINE Label read_label(const LogitPair& pair, int64_t row) {
  int64_t value = 0;
  switch (pair.label_type) {
    case LabelType::uint8:
      value = label_at<uint8_t>(pair, row);
      break;
    case LabelType::int8:
      value = label_at<int8_t>(pair, row);
      break;
    case LabelType::uint16:
      value = label_at<uint16_t>(pair, row);
      break;
    case LabelType::int16:
      value = label_at<int16_t>(pair, row);
      break;
    case LabelType::uint32:
      value = label_at<uint32_t>(pair, row);
      break;
    case LabelType::int32:
      value = label_at<int32_t>(pair, row);
      break;
    case LabelType::uint64:  // past int64 it turns negative, which is as invalid
    case LabelType::int64:
      value = label_at<int64_t>(pair, row);
      break;
  }
  const bool ignored = pair.has_ignore_index && value == pair.ignore_index;
  return {value, ignored, !ignored && value >= 0 && value < pair.classes};
}

}  // namespace jocor_fast
