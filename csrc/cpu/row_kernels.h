// The two kernels that walk over rows: loss and statistics of each row, and its gradient. A row lies across the lanes
// of a vector; its last, partial vector is filled with -inf, which is a class of probability 0, so that the formulas
// need no tail of their own, and a row's result cannot depend on where it lies in the batch.
//
// Included by one .cpp file per instruction set (see simd.h).
#pragma once

#include "../joint_loss.h"
#include "../joint_loss_math.h"
#include "simd.h"

namespace jocor_fast::cpu::JF_ISA {

// --- labels ---------------------------------------------------------------------------------------------------------

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
    case LabelType::uint8: value = label_at<uint8_t>(pair, row); break;
    case LabelType::int8: value = label_at<int8_t>(pair, row); break;
    case LabelType::uint16: value = label_at<uint16_t>(pair, row); break;
    case LabelType::int16: value = label_at<int16_t>(pair, row); break;
    case LabelType::uint32: value = label_at<uint32_t>(pair, row); break;
    case LabelType::int32: value = label_at<int32_t>(pair, row); break;
    case LabelType::uint64:  // past int64 it turns negative, which is as invalid
    case LabelType::int64: value = label_at<int64_t>(pair, row); break;
  }
  const bool ignored = pair.has_ignore_index && value == pair.ignore_index;
  return {value, ignored, !ignored && value >= 0 && value < pair.classes};
}

// --- a row, vector by vector ----------------------------------------------------------------------------------------

// Calls body(first column, columns in this vector, whether it is whole).
template <class Real, class Body>
JF_INLINE void for_each_vector(int64_t classes, Body body) {
  constexpr int lanes = Lanes<Real>::count;
  int64_t column = 0;
  for (; column + lanes <= classes; column += lanes) body(column, lanes, std::true_type{});
  if (column < classes) body(column, static_cast<int>(classes - column), std::false_type{});
}

template <class Logit, class Whole>
JF_INLINE auto load_columns(const Logit* row, int64_t column, int n, Whole) {
  if constexpr (Whole::value) {
    return load(row + column);
  } else {
    return load_tail(row + column, n);
  }
}

template <class Logit, class V, class Whole>
JF_INLINE void store_columns(Logit* row, int64_t column, int n, V value, Whole) {
  if constexpr (Whole::value) {
    store(row + column, value);
  } else {
    store_tail(row + column, value, n);
  }
}

template <class Logit>
JF_INLINE RealOf<Logit> logit_at(const Logit* row, int64_t column) {
  if constexpr (std::is_same_v<Logit, float> || std::is_same_v<Logit, double>) {
    return row[column];
  } else {
    return to_float(row[column]);
  }
}

template <class Logit>
int64_t arg_max(const Logit* row, int64_t classes) {
  int64_t best = 0;
  for (int64_t column = 1; column < classes; ++column) {
    if (logit_at(row, column) > logit_at(row, best)) best = column;
  }
  return best;
}

// --- step 1 ---------------------------------------------------------------------------------------------------------

template <class Real>
struct RowLoss {
  RowStatistics<Real> statistics;
  Real symmetric_kl;
  Real max1, max2;          // of the logits
  Real log_sum1, log_sum2;  // log sum exp(z - max): lse without its large part
};

// Exponentials of a row up to this many classes are kept between its passes; longer rows compute them again.
constexpr int64_t kKeptClasses = 2048;

template <class Logit, bool kWithKl>
JF_INLINE RowLoss<RealOf<Logit>> row_loss(const Logit* z1, const Logit* z2, int64_t classes) {
  using Real = RealOf<Logit>;
  using V = Vector<Real>;
  RowLoss<Real> row{};

  V max1 = broadcast(-std::numeric_limits<Real>::infinity()), max2 = max1;
  for_each_vector<Real>(classes, [&](int64_t j, int n, auto whole) __attribute__((always_inline)) {
    max1 = larger(load_columns(z1, j, n, whole), max1);
    max2 = larger(load_columns(z2, j, n, whole), max2);
  });
  row.max1 = max_of_lanes<Real>(max1);
  row.max2 = max_of_lanes<Real>(max2);

  alignas(64) Real kept1[kWithKl ? kKeptClasses : 1], kept2[kWithKl ? kKeptClasses : 1];
  const bool keep = kWithKl && classes <= kKeptClasses - Lanes<Real>::count;
  V sum1{}, sum2{};
  for_each_vector<Real>(classes, [&](int64_t j, int n, auto whole) __attribute__((always_inline)) {
    const V exp1 = exp_nonpositive(load_columns(z1, j, n, whole) - row.max1);
    const V exp2 = exp_nonpositive(load_columns(z2, j, n, whole) - row.max2);
    sum1 += exp1;
    sum2 += exp2;
    if (keep) {
      store(kept1 + j, exp1);
      store(kept2 + j, exp2);
    }
  });
  const Real total1 = sum_of_lanes<Real>(sum1), total2 = sum_of_lanes<Real>(sum2);
  row.log_sum1 = logarithm(total1);
  row.log_sum2 = logarithm(total2);
  row.statistics.lse1 = row.max1 + row.log_sum1;
  row.statistics.lse2 = row.max2 + row.log_sum2;

  if constexpr (kWithKl) {
    const Real scale1 = Real(1) / total1, scale2 = Real(1) / total2;
    const Real log_sum_difference = row.log_sum1 - row.log_sum2;
    V kl12{}, kl21{}, symmetric{};
    for_each_vector<Real>(classes, [&](int64_t j, int n, auto whole) __attribute__((always_inline)) {
      const V shifted1 = load_columns(z1, j, n, whole) - row.max1;
      const V shifted2 = load_columns(z2, j, n, whole) - row.max2;
      const V p = (keep ? load(kept1 + j) : exp_nonpositive(shifted1)) * scale1;
      const V q = (keep ? load(kept2 + j) : exp_nonpositive(shifted2)) * scale2;
      const V delta = (shifted1 - shifted2) - log_sum_difference;
      kl12 += kl12_term(p, delta);
      kl21 += kl21_term(q, delta);
      symmetric += symmetric_kl_term(p, q, delta);
    });
    row.statistics.kl12 = sum_of_lanes<Real>(kl12);
    row.statistics.kl21 = sum_of_lanes<Real>(kl21);
    row.symmetric_kl = sum_of_lanes<Real>(symmetric);
  }
  return row;
}

template <class Real>
JF_INLINE void write_at(void* array, int64_t row, Real value) {
  if (array != nullptr) static_cast<Real*>(array)[row] = value;
}

template <class Logit, bool kWithKl>
int64_t row_losses_of(const RowParams& params, int64_t begin, int64_t end) {
  using Real = RealOf<Logit>;
  const LogitPair& pair = params.pair;
  const Real co_lambda = static_cast<Real>(pair.co_lambda);
  int64_t first_bad_label = kNoBadLabel;
  for (int64_t i = begin; i < end; ++i) {
    const Logit* z1 = static_cast<const Logit*>(pair.logits1) + i * pair.row_stride1;
    const Logit* z2 = static_cast<const Logit*>(pair.logits2) + i * pair.row_stride2;
    const Label label = read_label(pair, i);
    if (!label.valid && !label.ignored && first_bad_label == kNoBadLabel) first_bad_label = i;

    const RowLoss<Real> row = row_loss<Logit, kWithKl>(z1, z2, pair.classes);
    static_cast<RowStatistics<Real>*>(params.statistics)[i] = row.statistics;
    Real loss1 = 0, loss2 = 0, joint = 0;
    if (label.valid) {
      // log_sum - (z_y - max) and not lse - z_y: the large numbers leave before the small ones are added
      loss1 = row.log_sum1 - (logit_at(z1, label.value) - row.max1);
      loss2 = row.log_sum2 - (logit_at(z2, label.value) - row.max2);
      joint = combined_loss(loss1, loss2, row.symmetric_kl, co_lambda);
    } else if (!label.ignored) {
      loss1 = loss2 = joint = std::numeric_limits<Real>::quiet_NaN();
    }
    write_at(params.per_sample, i, joint);
    write_at(params.cross_entropy1, i, loss1);
    write_at(params.cross_entropy2, i, loss2);
    if (params.row_state != nullptr) {
      const bool differ = params.compare_predictions && arg_max(z1, pair.classes) != arg_max(z2, pair.classes);
      params.row_state[i] = label.ignored ? kIneligible : (differ ? kEligibleAndPredictionsDiffer : kEligible);
    }
  }
  return first_bad_label;
}

// --- step 3 ---------------------------------------------------------------------------------------------------------

template <class Logit>
JF_INLINE void row_gradient_zero(Logit* gradient, int64_t classes) {
  if (gradient != nullptr) std::memset(static_cast<void*>(gradient), 0, classes * sizeof(Logit));
}

template <class Logit, bool kWithKl>
JF_INLINE void row_gradient(const LogitPair& pair, const Logit* z1, const Logit* z2, int64_t label,
                            const RowStatistics<RealOf<Logit>>& statistics, RealOf<Logit> weight1,
                            RealOf<Logit> weight2, Logit* gradient1, Logit* gradient2) {
  using Real = RealOf<Logit>;
  using V = Vector<Real>;
  using Index = typename Lanes<Real>::Index;
  typename Lanes<Real>::IndexVector lane_numbers{};
  for (int lane = 0; lane < Lanes<Real>::count; ++lane) lane_numbers[lane] = lane;
  const Real co_lambda = static_cast<Real>(pair.co_lambda);
  const V at_label = broadcast(label_gradient(co_lambda));

  for_each_vector<Real>(pair.classes, [&](int64_t j, int n, auto whole) __attribute__((always_inline)) {
    // columns past an int32 away cannot be the label of this vector
    const int64_t offset = label - j;
    const Index lane_of_label = static_cast<Index>(offset >= 0 && offset < n ? offset : -1);
    const V label_part = lane_numbers == lane_of_label ? at_label : V{};
    if constexpr (kWithKl) {
      const V log_p = load_columns(z1, j, n, whole) - statistics.lse1;
      const V log_q = load_columns(z2, j, n, whole) - statistics.lse2;
      const V p = exp_nonpositive(log_p), q = exp_nonpositive(log_q), delta = log_p - log_q;
      if (gradient1 != nullptr) {
        const V value = class_gradient(p, q, delta, broadcast(statistics.kl12), co_lambda) + label_part;
        store_columns(gradient1, j, n, value * weight1, whole);
      }
      if (gradient2 != nullptr) {
        const V value = class_gradient(q, p, -delta, broadcast(statistics.kl21), co_lambda) + label_part;
        store_columns(gradient2, j, n, value * weight2, whole);
      }
    } else {
      if (gradient1 != nullptr) {
        const V p = exp_nonpositive(load_columns(z1, j, n, whole) - statistics.lse1);
        store_columns(gradient1, j, n, (p + label_part) * weight1, whole);
      }
      if (gradient2 != nullptr) {
        const V q = exp_nonpositive(load_columns(z2, j, n, whole) - statistics.lse2);
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
  const Real* per_sample = static_cast<const Real*>(params.per_sample);
  const Real scale1 = params.num_selected1 != nullptr ? Real(1) / static_cast<Real>(*params.num_selected1) : Real(1);
  const Real scale2 = params.num_selected2 != nullptr ? Real(1) / static_cast<Real>(*params.num_selected2) : Real(1);
  for (int64_t i = begin; i < end; ++i) {
    const Logit* z1 = static_cast<const Logit*>(pair.logits1) + i * pair.row_stride1;
    const Logit* z2 = static_cast<const Logit*>(pair.logits2) + i * pair.row_stride2;
    Logit* gradient1 = params.grad1 != nullptr ? static_cast<Logit*>(params.grad1) + i * pair.classes : nullptr;
    Logit* gradient2 = params.grad2 != nullptr ? static_cast<Logit*>(params.grad2) + i * pair.classes : nullptr;
    const Label label = read_label(pair, i);
    const bool trains = label.valid && (per_sample == nullptr || __builtin_isfinite(per_sample[i]));
    const bool trains1 = trains && (params.selected1 == nullptr || params.selected1[i] != 0);
    const bool trains2 = trains && (params.selected2 == nullptr || params.selected2[i] != 0);
    if (!trains1) {  // written, not multiplied by 0: 0 * NaN is NaN
      row_gradient_zero(gradient1, pair.classes);
      gradient1 = nullptr;
    }
    if (!trains2) {
      row_gradient_zero(gradient2, pair.classes);
      gradient2 = nullptr;
    }
    if (gradient1 == nullptr && gradient2 == nullptr) continue;
    const Real upstream = grad_output[i * params.grad_stride];
    const auto& statistics = static_cast<const RowStatistics<Real>*>(params.statistics)[i];
    row_gradient<Logit, kWithKl>(pair, z1, z2, label.value, statistics, upstream * scale1, upstream * scale2, gradient1,
                                 gradient2);
  }
}

// --- choice of the template -----------------------------------------------------------------------------------------

// Calls body(a null pointer of the logit type, whether KL is evaluated).
template <class Body>
JF_INLINE auto with_types(const LogitPair& pair, Body body) {
  const auto with_kl = [&](auto type) {
    return pair.co_lambda != 0.0 ? body(type, std::true_type{}) : body(type, std::false_type{});
  };
  switch (pair.type) {
    case LogitType::float16: return with_kl(static_cast<float16*>(nullptr));
    case LogitType::bfloat16: return with_kl(static_cast<bfloat16*>(nullptr));
    case LogitType::float64: return with_kl(static_cast<double*>(nullptr));
    case LogitType::float32: break;
  }
  return with_kl(static_cast<float*>(nullptr));
}

inline int64_t row_losses(const RowParams& params, int64_t begin, int64_t end) {
  return with_types(params.pair, [&](auto* type, auto with_kl) {
    return row_losses_of<std::remove_pointer_t<decltype(type)>, decltype(with_kl)::value>(params, begin, end);
  });
}

inline void row_gradients(const GradientParams& params, int64_t begin, int64_t end) {
  with_types(params.pair, [&](auto* type, auto with_kl) {
    row_gradients_of<std::remove_pointer_t<decltype(type)>, decltype(with_kl)::value>(params, begin, end);
  });
}

}  // namespace jocor_fast::cpu::JF_ISA
