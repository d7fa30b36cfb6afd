// Step 3: gradients of the weighted sum of the chosen rows' losses.
//
// Included by one .cpp file per instruction set (see simd.h).
#pragma once

#include "row_vectors.h"

namespace jocor_fast::cpu::JF_ISA {

// The label's share of a row's gradient, a vector at a time.
template <class Real>
class LabelParts {
 public:
  JF_INLINE LabelParts(Real gradient, int64_t label) : gradient_(broadcast(gradient)), label_(label) {
    for (int lane = 0; lane < Lanes<Real>::count; ++lane) lane_numbers_[lane] = lane;
  }

  JF_INLINE Vector<Real> of(int64_t column, int n) const {
    const int64_t offset = label_ - column;
    // -1, no lane, if the label is not in this vector; if it is, the offset fits into an int32
    const auto lane = static_cast<typename Lanes<Real>::Index>(offset >= 0 && offset < n ? offset : -1);
    return lane_numbers_ == lane ? gradient_ : Vector<Real>{};
  }

 private:
  Vector<Real> gradient_;
  typename Lanes<Real>::IndexVector lane_numbers_{};
  int64_t label_;
};

template <class Logit, bool kWithKl>
JF_INLINE void row_gradient(const LogitPair& pair, const Logit* z1, const Logit* z2, int64_t label,
                            const RowStatistics<RealOf<Logit>>& statistics, RealOf<Logit> weight1,
                            RealOf<Logit> weight2, Logit* gradient1, Logit* gradient2) {
  using Real = RealOf<Logit>;
  using V = Vector<Real>;
  const JointLoss<Real> loss(pair);
  const LabelParts<Real> label_parts(loss.label_gradient(), label);
  const auto maxima = row_maxima(z1, z2, pair.classes);
  V log_sums{};
  log_sums[0] = statistics.log_sum1;
  log_sums[1] = statistics.log_sum2;
  const V scales = inverse_sums<Real>(log_sums);
  const Real scale1 = scales[0], scale2 = scales[1], log_sum_difference = statistics.log_sum1 - statistics.log_sum2;

  for_each_vector<Real>(pair.classes, [&](int64_t j, int n, auto whole) __attribute__((always_inline)) {
    const V label_part = label_parts.of(j, n);
    if constexpr (kWithKl) {
      const V shifted1 = load_columns(z1, j, n, whole) - maxima.first;
      const V shifted2 = load_columns(z2, j, n, whole) - maxima.second;
      const V p = exp_nonpositive(shifted1) * scale1, q = exp_nonpositive(shifted2) * scale2;
      const V delta = finite_or_zero(V((shifted1 - shifted2) - log_sum_difference));
      if (gradient1 != nullptr) {
        const V value = loss.class_gradient(p, q, delta, broadcast(statistics.kl12)) + label_part;
        store_columns(gradient1, j, n, value * weight1, whole);
      }
      if (gradient2 != nullptr) {
        const V value = loss.class_gradient(q, p, -delta, broadcast(statistics.kl21)) + label_part;
        store_columns(gradient2, j, n, value * weight2, whole);
      }
    } else {
      if (gradient1 != nullptr) {
        const V p = exp_nonpositive(load_columns(z1, j, n, whole) - maxima.first) * scale1;
        store_columns(gradient1, j, n, (p + label_part) * weight1, whole);
      }
      if (gradient2 != nullptr) {
        const V q = exp_nonpositive(load_columns(z2, j, n, whole) - maxima.second) * scale2;
        store_columns(gradient2, j, n, (q + label_part) * weight2, whole);
      }
    }
  });
}

// The same, bit for bit, for a row whose exponentials lie in the memory of its gradients. Without KL one of these may
// be null.
template <class Real, bool kWithKl>
JF_INLINE void kept_row_gradient(const LogitPair& pair, const Real* z1, const Real* z2, int64_t label,
                                 const RowStatistics<Real>& statistics, const KeptRow<Real>& kept, Real weight1,
                                 Real weight2, Real* gradient1, Real* gradient2) {
  using V = Vector<Real>;
  const JointLoss<Real> loss(pair);
  const LabelParts<Real> label_parts(loss.label_gradient(), label);
  const Real log_sum_difference = statistics.log_sum1 - statistics.log_sum2;

  for_each_vector<Real>(pair.classes, [&](int64_t j, int n, auto whole) __attribute__((always_inline)) {
    const V label_part = label_parts.of(j, n);
    if constexpr (kWithKl) {
      const V p = load_columns_or_zeros(gradient1, j, n, whole) * kept.scale1;
      const V q = load_columns_or_zeros(gradient2, j, n, whole) * kept.scale2;
      const V shifted1 = load_columns(z1, j, n, whole) - kept.max1,
              shifted2 = load_columns(z2, j, n, whole) - kept.max2;
      const V delta = finite_or_zero(V((shifted1 - shifted2) - log_sum_difference));
      const V value1 = loss.class_gradient(p, q, delta, broadcast(statistics.kl12)) + label_part;
      const V value2 = loss.class_gradient(q, p, -delta, broadcast(statistics.kl21)) + label_part;
      store_columns(gradient1, j, n, value1 * weight1, whole);
      store_columns(gradient2, j, n, value2 * weight2, whole);
    } else {
      if (gradient1 != nullptr) {
        const V p = load_columns_or_zeros(gradient1, j, n, whole) * kept.scale1;
        store_columns(gradient1, j, n, (p + label_part) * weight1, whole);
      }
      if (gradient2 != nullptr) {
        const V q = load_columns_or_zeros(gradient2, j, n, whole) * kept.scale2;
        store_columns(gradient2, j, n, (q + label_part) * weight2, whole);
      }
    }
  });
}

template <class Logit, bool kWithKl>
void row_gradients_of(const GradientParams& params, int64_t begin, int64_t end) {
  using Real = RealOf<Logit>;
  const LogitPair& pair = params.pair;
  const Real* grad_output = static_cast<const Real*>(params.grad_output);
  const Real scale1 = params.num_selected1 != nullptr ? Real(1) / static_cast<Real>(*params.num_selected1) : Real(1);
  const Real scale2 = params.num_selected2 != nullptr ? Real(1) / static_cast<Real>(*params.num_selected2) : Real(1);
  for (int64_t i = begin; i < end; ++i) {
    const Logit* z1 = static_cast<const Logit*>(pair.logits1) + i * pair.row_stride1;
    const Logit* z2 = static_cast<const Logit*>(pair.logits2) + i * pair.row_stride2;
    Logit* gradient1 = params.grad1 != nullptr ? static_cast<Logit*>(params.grad1) + i * pair.classes : nullptr;
    Logit* gradient2 = params.grad2 != nullptr ? static_cast<Logit*>(params.grad2) + i * pair.classes : nullptr;
    const Label label = read_label(pair, i);
    const auto& statistics = static_cast<const RowStatistics<Real>*>(params.statistics)[i];
    const bool trains = label.valid && !__builtin_isnan(statistics.log_sum1);
    const bool trains1 = trains && (params.selected1 == nullptr || params.selected1[i] != 0);
    const bool trains2 = trains && (params.selected2 == nullptr || params.selected2[i] != 0);
    if (!trains1) {  // written, not multiplied by 0: 0 * NaN is NaN
      zero_row(gradient1, pair.classes);
      gradient1 = nullptr;
    }
    if (!trains2) {
      zero_row(gradient2, pair.classes);
      gradient2 = nullptr;
    }
    if (gradient1 == nullptr && gradient2 == nullptr) continue;
    const Real upstream = grad_output[i * params.grad_stride];
    if constexpr (std::is_same_v<Logit, Real>) {
      if (params.kept_rows != nullptr && (!kWithKl || (gradient1 != nullptr && gradient2 != nullptr))) {
        kept_row_gradient<Real, kWithKl>(pair, z1, z2, label.value, statistics,
                                         static_cast<const KeptRow<Real>*>(params.kept_rows)[i], upstream * scale1,
                                         upstream * scale2, gradient1, gradient2);
        continue;
      }
    }
    row_gradient<Logit, kWithKl>(pair, z1, z2, label.value, statistics, upstream * scale1, upstream * scale2, gradient1,
                                 gradient2);
  }
}

inline void row_gradients(const GradientParams& params, int64_t begin, int64_t end) {
  with_types(params.pair, [&](auto* type, auto with_kl) {
    row_gradients_of<std::remove_pointer_t<decltype(type)>, decltype(with_kl)::value>(params, begin, end);
  });
}

}  // namespace jocor_fast::cpu::JF_ISA
