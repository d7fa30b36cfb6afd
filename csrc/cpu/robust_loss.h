// The two kernels of the robust losses of one network: loss and statistics of each row, and its gradient.
//
// Included by one .cpp file per instruction set (see simd.h).
#pragma once

#include "../robust_rows.h"
#include "row_vectors.h"

namespace jocor_fast::cpu::JF_ISA {

// Whether a column is a class: neither masked nor past the end of the row.
template <class Real>
JF_INLINE auto not_masked(Vector<Real> shifted) {
  return shifted != broadcast(-std::numeric_limits<Real>::infinity());
}

// Rows go through the phases in blocks, as in row_losses_of, and for the same reason.
template <class Logit>
int64_t robust_losses_of(const RobustRowParams& params, int64_t begin, int64_t end) {
  using Real = RealOf<Logit>;
  using V = Vector<Real>;
  const Logits& logits = params.logits;
  const RobustLoss<Real> loss(params.settings);
  const Logit* z[kBlockRows];
  Real max[kBlockRows], shifted_sum[kBlockRows], classes[kBlockRows];
  alignas(64) Real log_sum[kBlockRows];
  for (int64_t r = 0; r < kBlockRows; ++r) log_sum[r] = Real(1);  // lanes past the last row

  int64_t first_bad_label = kNoBadLabel;
  for (int64_t first = begin; first < end; first += kBlockRows) {
    const int64_t rows = end - first < kBlockRows ? end - first : kBlockRows;
    for (int64_t r = 0; r < rows; ++r) {
      z[r] = static_cast<const Logit*>(logits.logits) + (first + r) * logits.row_stride;
      const auto columns = [&](int64_t j, int n, auto whole)
                               __attribute__((always_inline)) { return load_columns(z[r], j, n, whole); };
      max[r] = largest_of_columns<Real>(logits.classes, columns);
    }
    for (int64_t r = 0; r < rows; ++r) {
      const auto add = [&](int64_t j, int n, auto whole, V* sums) __attribute__((always_inline)) {
        const V shifted = load_columns(z[r], j, n, whole) - max[r];
        sums[0] += exp_nonpositive(shifted);
        sums[1] += not_masked<Real>(shifted) ? shifted : V{};
        sums[2] += not_masked<Real>(shifted) ? broadcast(Real(1)) : V{};
      };
      const auto sums = sums_over_columns<Real, 3>(logits.classes, add);
      log_sum[r] = sums[0];
      shifted_sum[r] = sums[1];
      classes[r] = sums[2];
    }
    take_logarithms(log_sum, log_sum);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t i = first + r;
      const Label label = read_label(logits, i);
      RobustRow<Real> row{};
      if (label.valid) {
        const Real shifted_label = logit_at(z[r], label.value) - max[r];
        row = loss.of_row(
            log_sum[r], shifted_label, shifted_sum[r], classes[r], [](Real x) { return std::exp(x); },
            [](Real x) { return std::log(x); });
      } else if (!label.ignored && first_bad_label == kNoBadLabel) {
        first_bad_label = i;
      }
      write_robust_row(params, i, label, row);
    }
  }
  return first_bad_label;
}

template <class Logit>
JF_INLINE void robust_gradient(const Logit* z, int64_t classes, int64_t label,
                               const RobustStatistics<RealOf<Logit>>& statistics, RealOf<Logit> weight,
                               Logit* gradient) {
  using Real = RealOf<Logit>;
  using V = Vector<Real>;
  using Index = typename Lanes<Real>::Index;
  typename Lanes<Real>::IndexVector lane_numbers{};
  for (int lane = 0; lane < Lanes<Real>::count; ++lane) lane_numbers[lane] = lane;
  const V at_label = broadcast(statistics.label), unmasked = broadcast(statistics.unmasked);
  const auto columns = [&](int64_t j, int n, auto whole)
                           __attribute__((always_inline)) { return load_columns(z, j, n, whole); };
  const Real max = largest_of_columns<Real>(classes, columns);

  for_each_vector<Real>(classes, [&](int64_t j, int n, auto whole) __attribute__((always_inline)) {
    const int64_t offset = label - j;
    // -1, no lane, if the label is not in this vector; if it is, the offset fits into an int32
    const Index lane_of_label = static_cast<Index>(offset >= 0 && offset < n ? offset : -1);
    const V label_part = lane_numbers == lane_of_label ? at_label : V{};
    const V shifted = columns(j, n, whole) - max;
    const V class_part = not_masked<Real>(shifted) ? unmasked : V{};
    const V p = exp_nonpositive(shifted - statistics.log_sum);
    store_columns(gradient, j, n, ((p * statistics.scale - class_part) - label_part) * weight, whole);
  });
}

template <class Logit>
void robust_gradients_of(const RobustGradientParams& params, int64_t begin, int64_t end) {
  using Real = RealOf<Logit>;
  const Logits& logits = params.logits;
  const Real* grad_output = static_cast<const Real*>(params.grad_output);
  const Real scale = params.num_selected != nullptr ? Real(1) / static_cast<Real>(*params.num_selected) : Real(1);
  for (int64_t i = begin; i < end; ++i) {
    const Logit* z = static_cast<const Logit*>(logits.logits) + i * logits.row_stride;
    Logit* gradient = static_cast<Logit*>(params.grad) + i * logits.classes;
    const Label label = read_label(logits, i);
    const auto& statistics = static_cast<const RobustStatistics<Real>*>(params.statistics)[i];
    const bool selected = params.selected == nullptr || params.selected[i] != 0;
    if (label.valid && selected && !__builtin_isnan(statistics.log_sum)) {
      const Real weight = grad_output[i * params.grad_stride] * scale;
      robust_gradient(z, logits.classes, label.value, statistics, weight, gradient);
    } else {  // written, not multiplied by 0: 0 * NaN is NaN
      zero_row(gradient, logits.classes);
    }
  }
}

inline int64_t robust_losses(const RobustRowParams& params, int64_t begin, int64_t end) {
  return with_logit_type(params.logits.type, [&](auto* type) {
    return robust_losses_of<std::remove_pointer_t<decltype(type)>>(params, begin, end);
  });
}

inline void robust_gradients(const RobustGradientParams& params, int64_t begin, int64_t end) {
  with_logit_type(params.logits.type,
                  [&](auto* type) { robust_gradients_of<std::remove_pointer_t<decltype(type)>>(params, begin, end); });
}

}  // namespace jocor_fast::cpu::JF_ISA
