// The two kernels of forward correction: loss and statistics of each row, and its gradient.
//
// Included by one .cpp file per instruction set (see simd.h).
#pragma once

#include "row_vectors.h"

namespace jocor_fast::cpu::JF_ISA {

// A row's logits, and log T[:, y] of its label y.
template <class Logit>
struct CorrectedRow {
  const Logit* z;
  const RealOf<Logit>* log_t;  // null where the label is invalid
};

template <class Logit>
JF_INLINE CorrectedRow<Logit> corrected_row(const CorrectedLogits& logits, int64_t row) {
  const Label label = read_label(logits, row);
  const auto* log_transition_t = static_cast<const RealOf<Logit>*>(logits.log_transition_t);
  return {static_cast<const Logit*>(logits.logits) + row * logits.row_stride,
          label.valid ? log_transition_t + label.value * logits.classes : nullptr};
}

// Rows go through the phases in blocks, as in row_losses_of, and for the same reason.
template <class Logit>
int64_t corrected_losses_of(const CorrectedRowParams& params, int64_t begin, int64_t end) {
  using Real = RealOf<Logit>;
  using V = Vector<Real>;
  const int64_t classes = params.logits.classes;
  CorrectedRow<Logit> rows[kBlockRows];
  alignas(64) Real sum[kBlockRows], top_sum[kBlockRows];
  for (int64_t r = 0; r < kBlockRows; ++r) sum[r] = top_sum[r] = Real(1);  // lanes past the last row

  for (int64_t first = begin; first < end; first += kBlockRows) {
    const int64_t count = end - first < kBlockRows ? end - first : kBlockRows;
    auto* const statistics = static_cast<CorrectedStatistics<Real>*>(params.statistics) + first;
    for (int64_t r = 0; r < count; ++r) {
      rows[r] = corrected_row<Logit>(params.logits, first + r);
      if (rows[r].log_t == nullptr) return first + r;
      const auto z = [&](int64_t j, int n, auto whole)
                         __attribute__((always_inline)) { return load_columns(rows[r].z, j, n, whole); };
      statistics[r].max = largest_of_columns<Real>(classes, z);
    }
    for (int64_t r = 0; r < count; ++r) {
      const auto joint = [&](int64_t j, int n, auto whole) __attribute__((always_inline)) {
        return (load_columns(rows[r].z, j, n, whole) - statistics[r].max) + load_columns(rows[r].log_t, j, n, whole);
      };
      statistics[r].top = largest_of_columns<Real>(classes, joint);
    }
    for (int64_t r = 0; r < count; ++r) {
      const Real max = statistics[r].max, top = statistics[r].top;
      const auto add = [&](int64_t j, int n, auto whole, V* sums) __attribute__((always_inline)) {
        const V shifted = load_columns(rows[r].z, j, n, whole) - max;
        sums[0] += exp_nonpositive(shifted);
        sums[1] += exp_nonpositive((shifted + load_columns(rows[r].log_t, j, n, whole)) - top);
      };
      const auto sums = sums_over_columns<Real, 2>(classes, add);
      sum[r] = sums[0];
      top_sum[r] = sums[1];
    }
    take_logarithms(sum, sum);
    take_logarithms(top_sum, top_sum);
    for (int64_t r = 0; r < count; ++r) {
      statistics[r].log_sum = sum[r];
      statistics[r].log_top_sum = top_sum[r];
      const Real loss = corrected_loss(statistics[r]);
      static_cast<Real*>(params.per_sample)[first + r] = loss;
      if (!__builtin_isfinite(loss)) statistics[r].max = std::numeric_limits<Real>::quiet_NaN();
    }
  }
  return kNoBadLabel;
}

template <class Logit>
void corrected_gradients_of(const CorrectedGradientParams& params, int64_t begin, int64_t end) {
  using Real = RealOf<Logit>;
  using V = Vector<Real>;
  const int64_t classes = params.logits.classes;
  const auto* const statistics = static_cast<const CorrectedStatistics<Real>*>(params.statistics);
  for (int64_t i = begin; i < end; ++i) {
    const auto row = corrected_row<Logit>(params.logits, i);
    const auto kept = statistics[i];
    Logit* const gradient = static_cast<Logit*>(params.grad) + i * classes;
    if (row.log_t == nullptr || __builtin_isnan(kept.max)) {  // written, not multiplied by 0: 0 * NaN is NaN
      zero_row(gradient, classes);
      continue;
    }
    const Real weight = static_cast<const Real*>(params.grad_output)[i * params.grad_stride] * Real(params.scale);
    for_each_vector<Real>(classes, [&](int64_t j, int n, auto whole) __attribute__((always_inline)) {
      const V shifted = load_columns(row.z, j, n, whole) - kept.max;
      const V joint = shifted + load_columns(row.log_t, j, n, whole);
      const V p = exp_nonpositive(shifted - kept.log_sum);
      const V share = exp_nonpositive((joint - kept.top) - kept.log_top_sum);
      store_columns(gradient, j, n, (p - share) * weight, whole);
    });
  }
}

inline int64_t corrected_losses(const CorrectedRowParams& params, int64_t begin, int64_t end) {
  return with_logit_type(params.logits.type, [&](auto* type) {
    return corrected_losses_of<std::remove_pointer_t<decltype(type)>>(params, begin, end);
  });
}

inline void corrected_gradients(const CorrectedGradientParams& params, int64_t begin, int64_t end) {
  with_logit_type(params.logits.type, [&](auto* type) {
    corrected_gradients_of<std::remove_pointer_t<decltype(type)>>(params, begin, end);
  });
}

}  // namespace jocor_fast::cpu::JF_ISA
