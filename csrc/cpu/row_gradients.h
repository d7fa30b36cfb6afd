// Step 3: gradients of the weighted sum of the chosen rows' losses.
//
// Included by one .cpp file per instruction set (see simd.h).
#pragma once

#include "row_vectors.h"

namespace jocor_fast::cpu::JF_ISA {

template <class Logit, bool kWithKl>
JF_INLINE void row_gradient(const LogitPair& pair, const Logit* z1, const Logit* z2, int64_t label,
                            const RowStatistics<RealOf<Logit>>& statistics, RealOf<Logit> weight1,
                            RealOf<Logit> weight2, Logit* gradient1, Logit* gradient2) {
  using Real = RealOf<Logit>;
  using V = Vector<Real>;
  using Index = typename Lanes<Real>::Index;
  typename Lanes<Real>::IndexVector lane_numbers{};
  for (int lane = 0; lane < Lanes<Real>::count; ++lane) lane_numbers[lane] = lane;
  const JointLoss<Real> loss(pair);
  const V at_label = broadcast(loss.label_gradient());
  const auto maxima = row_maxima(z1, z2, pair.classes);

  for_each_vector<Real>(pair.classes, [&](int64_t j, int n, auto whole) __attribute__((always_inline)) {
    // columns past an int32 away cannot be the label of this vector
    const int64_t offset = label - j;
    const Index lane_of_label = static_cast<Index>(offset >= 0 && offset < n ? offset : -1);
    const V label_part = lane_numbers == lane_of_label ? at_label : V{};
    if constexpr (kWithKl) {
      const V log_p = (load_columns(z1, j, n, whole) - maxima.first) - statistics.log_sum1;
      const V log_q = (load_columns(z2, j, n, whole) - maxima.second) - statistics.log_sum2;
      const V p = exp_nonpositive(log_p), q = exp_nonpositive(log_q), delta = finite_log_ratio(log_p, log_q);
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
        const V p = exp_nonpositive((load_columns(z1, j, n, whole) - maxima.first) - statistics.log_sum1);
        store_columns(gradient1, j, n, (p + label_part) * weight1, whole);
      }
      if (gradient2 != nullptr) {
        const V q = exp_nonpositive((load_columns(z2, j, n, whole) - maxima.second) - statistics.log_sum2);
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
