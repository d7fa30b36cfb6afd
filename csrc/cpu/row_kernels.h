// The two kernels that walk over rows: loss and statistics of each row, and its gradient. A row lies across the lanes
// of a vector; its last, partial vector is filled with -inf, which is a class of probability 0, so that the formulas
// need no tail of their own, and a row's result cannot depend on where it lies in the batch.
//
// Included by one .cpp file per instruction set (see simd.h).
#pragma once

#include <array>

#include "../joint_loss.h"
#include "../joint_loss_math.h"
#include "../labels.h"
#include "simd.h"

namespace jocor_fast::cpu::JF_ISA {

// --- a row, vector by vector ----------------------------------------------------------------------------------------

// Calls body(first column, columns in this vector, whether it is whole) for the columns from `column` to `end`.
template <class Real, class Body>
JF_INLINE void for_each_vector(int64_t column, int64_t end, Body body) {
  constexpr int lanes = Lanes<Real>::count;
  for (; column + lanes <= end; column += lanes) body(column, lanes, std::true_type{});
  if (column < end) body(column, static_cast<int>(end - column), std::false_type{});
}

template <class Real, class Body>
JF_INLINE void for_each_vector(int64_t classes, Body body) {
  for_each_vector<Real>(0, classes, body);
}

// Sums over a row of what body(first column, columns, whether whole, sums) adds to the lanes of N `sums`. A long row is
// added up in parts: at 40,000 columns in one go the 4 lanes of the narrowest vectors lose 1.3e-6.
constexpr int64_t kColumnsOfPart = 4096;

template <class Real, int N, class Body>
JF_INLINE std::array<Real, N> sums_over_columns(int64_t classes, Body body) {
  Vector<Real> totals[N] = {};
  for (int64_t first = 0; first < classes; first += kColumnsOfPart) {
    Vector<Real> sums[N] = {};
    const int64_t end = classes - first < kColumnsOfPart ? classes : first + kColumnsOfPart;
    for_each_vector<Real>(
        first, end, [&](int64_t j, int n, auto whole) __attribute__((always_inline)) { body(j, n, whole, sums); });
    for (int s = 0; s < N; ++s) totals[s] += sums[s];
  }
  std::array<Real, N> result;
  for (int s = 0; s < N; ++s) result[s] = sum_of_lanes<Real>(totals[s]);
  return result;
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

template <class Logit>
JF_INLINE std::pair<RealOf<Logit>, RealOf<Logit>> row_maxima(const Logit* z1, const Logit* z2, int64_t classes) {
  using Real = RealOf<Logit>;
  Vector<Real> max1 = broadcast(-std::numeric_limits<Real>::infinity()), max2 = max1;
  for_each_vector<Real>(classes, [&](int64_t j, int n, auto whole) __attribute__((always_inline)) {
    max1 = larger(load_columns(z1, j, n, whole), max1);
    max2 = larger(load_columns(z2, j, n, whole), max2);
  });
  return {max_of_lanes<Real>(max1), max_of_lanes<Real>(max2)};
}

// --- step 1 ---------------------------------------------------------------------------------------------------------

// Rows are taken in blocks, and each block goes through phases: maxima, exponentials and their sums, logarithms,
// divergences. Within a phase the rows do not depend on each other, so that a processor works on several at once, where
// one row from start to end is one long chain (128 x 10: 1.6 times as long). Exponentials are kept from one phase to
// the next; a block holds as many rows as keep them in the first-level cache, and rows longer than that are blocks of
// their own that compute them again.
constexpr int64_t kBlockRows = 16;
constexpr int64_t kKeptExponentials = 2048;  // of each network

template <class Logit>
struct Block {
  using Real = RealOf<Logit>;
  const Logit* z1[kBlockRows];
  const Logit* z2[kBlockRows];
  alignas(64) Real max1[kBlockRows], max2[kBlockRows];          // of a row's logits
  alignas(64) Real sum1[kBlockRows], sum2[kBlockRows];          // of exp(z - max)
  alignas(64) Real log_sum1[kBlockRows], log_sum2[kBlockRows];  // lse without its large part, the maximum
  Real kl12[kBlockRows], kl21[kBlockRows], symmetric_kl[kBlockRows];
  int64_t kept_stride;  // of a row's exponentials below; 0: not kept
  alignas(64) Real exp1[kKeptExponentials], exp2[kKeptExponentials];
};

template <class Logit>
JF_INLINE void find_maxima(Block<Logit>& block, int64_t rows, int64_t classes) {
  for (int64_t r = 0; r < rows; ++r) {
    const auto maxima = row_maxima(block.z1[r], block.z2[r], classes);
    block.max1[r] = maxima.first;
    block.max2[r] = maxima.second;
  }
}

template <class Logit, bool kKeep>
JF_INLINE void sum_exponentials(Block<Logit>& block, int64_t rows, int64_t classes) {
  using Real = RealOf<Logit>;
  for (int64_t r = 0; r < rows; ++r) {
    const Real max1 = block.max1[r], max2 = block.max2[r];
    const auto add = [&](int64_t j, int n, auto whole, Vector<Real>* sums) __attribute__((always_inline)) {
      const Vector<Real> exp1 = exp_nonpositive(load_columns(block.z1[r], j, n, whole) - max1);
      const Vector<Real> exp2 = exp_nonpositive(load_columns(block.z2[r], j, n, whole) - max2);
      sums[0] += exp1;
      sums[1] += exp2;
      if constexpr (kKeep) {
        store(block.exp1 + r * block.kept_stride + j, exp1);
        store(block.exp2 + r * block.kept_stride + j, exp2);
      }
    };
    const auto sums = sums_over_columns<Real, 2>(classes, add);
    block.sum1[r] = sums[0];
    block.sum2[r] = sums[1];
  }
}

template <class Real>
JF_INLINE void take_logarithms(const Real* sums, Real* logarithms) {
  for (int64_t r = 0; r < kBlockRows; r += Lanes<Real>::count) store(logarithms + r, logarithm(load(sums + r)));
}

template <class Logit, bool kKept>
JF_INLINE void sum_divergences(Block<Logit>& block, int64_t rows, int64_t classes) {
  using Real = RealOf<Logit>;
  using V = Vector<Real>;
  for (int64_t r = 0; r < rows; ++r) {
    const Real scale1 = Real(1) / block.sum1[r], scale2 = Real(1) / block.sum2[r];
    const Real max1 = block.max1[r], max2 = block.max2[r];
    const Real log_sum_difference = block.log_sum1[r] - block.log_sum2[r];
    const auto add = [&](int64_t j, int n, auto whole, V* sums) __attribute__((always_inline)) {
      const V shifted1 = load_columns(block.z1[r], j, n, whole) - max1;
      const V shifted2 = load_columns(block.z2[r], j, n, whole) - max2;
      V exp1, exp2;
      if constexpr (kKept) {
        exp1 = load(block.exp1 + r * block.kept_stride + j);
        exp2 = load(block.exp2 + r * block.kept_stride + j);
      } else {
        exp1 = exp_nonpositive(shifted1);
        exp2 = exp_nonpositive(shifted2);
      }
      const V p = exp1 * scale1, q = exp2 * scale2;
      const V delta = (shifted1 - shifted2) - log_sum_difference;
      sums[0] += kl12_term(p, delta);
      sums[1] += kl21_term(q, delta);
      sums[2] += symmetric_kl_term(p, q, delta);
    };
    const auto sums = sums_over_columns<Real, 3>(classes, add);
    block.kl12[r] = sums[0];
    block.kl21[r] = sums[1];
    block.symmetric_kl[r] = sums[2];
  }
}

template <class Real>
JF_INLINE void write_at(void* array, int64_t row, Real value) {
  if (array != nullptr) static_cast<Real*>(array)[row] = value;
}

// What a row's statistics make of its label. Returns whether the label may stand there.
template <class Logit>
JF_INLINE bool write_row(const RowParams& params, const Block<Logit>& block, int64_t r, int64_t row) {
  using Real = RealOf<Logit>;
  const LogitPair& pair = params.pair;
  const Label label = read_label(pair, row);
  Real loss1 = 0, loss2 = 0, joint = 0;
  if (label.valid) {
    // log_sum - (z_y - max) and not lse - z_y: the large numbers leave before the small ones are added
    loss1 = block.log_sum1[r] - (logit_at(block.z1[r], label.value) - block.max1[r]);
    loss2 = block.log_sum2[r] - (logit_at(block.z2[r], label.value) - block.max2[r]);
    joint = combined_loss(loss1, loss2, block.symmetric_kl[r], LossWeights<Real>(pair.co_lambda));
  } else if (!label.ignored) {
    loss1 = loss2 = joint = std::numeric_limits<Real>::quiet_NaN();
  }
  const Real log_sum1 = __builtin_isfinite(joint) ? block.log_sum1[r] : std::numeric_limits<Real>::quiet_NaN();
  static_cast<RowStatistics<Real>*>(params.statistics)[row] = {log_sum1, block.log_sum2[r], block.kl12[r],
                                                               block.kl21[r]};
  write_at(params.per_sample, row, joint);
  write_at(params.cross_entropy1, row, loss1);
  write_at(params.cross_entropy2, row, loss2);
  if (params.row_state != nullptr) {
    const bool differ =
        params.compare_predictions && arg_max(block.z1[r], pair.classes) != arg_max(block.z2[r], pair.classes);
    params.row_state[row] = label.ignored ? kIneligible : (differ ? kEligibleAndPredictionsDiffer : kEligible);
  }
  return label.valid || label.ignored;
}

template <class Logit, bool kWithKl>
int64_t row_losses_of(const RowParams& params, int64_t begin, int64_t end) {
  using Real = RealOf<Logit>;
  const LogitPair& pair = params.pair;
  const int64_t padded_classes = (pair.classes + Lanes<Real>::count - 1) / Lanes<Real>::count * Lanes<Real>::count;
  const bool keep = kWithKl && padded_classes <= kKeptExponentials;
  const int64_t fitting_rows = keep ? kKeptExponentials / padded_classes : (kWithKl ? 1 : kBlockRows);
  const int64_t block_rows = fitting_rows < kBlockRows ? fitting_rows : kBlockRows;
  Block<Logit> block;
  for (int64_t r = 0; r < kBlockRows; ++r) {  // lanes past the last row
    block.sum1[r] = block.sum2[r] = Real(1);
    block.kl12[r] = block.kl21[r] = block.symmetric_kl[r] = Real(0);  // what stays where lambda = 0
  }
  block.kept_stride = keep ? padded_classes : 0;

  int64_t first_bad_label = kNoBadLabel;
  for (int64_t first = begin; first < end; first += block_rows) {
    const int64_t rows = end - first < block_rows ? end - first : block_rows;
    for (int64_t r = 0; r < rows; ++r) {
      block.z1[r] = static_cast<const Logit*>(pair.logits1) + (first + r) * pair.row_stride1;
      block.z2[r] = static_cast<const Logit*>(pair.logits2) + (first + r) * pair.row_stride2;
    }
    find_maxima(block, rows, pair.classes);
    if (keep) {
      sum_exponentials<Logit, true>(block, rows, pair.classes);
    } else {
      sum_exponentials<Logit, false>(block, rows, pair.classes);
    }
    take_logarithms(block.sum1, block.log_sum1);
    take_logarithms(block.sum2, block.log_sum2);
    if constexpr (kWithKl) {
      if (keep) {
        sum_divergences<Logit, true>(block, rows, pair.classes);
      } else {
        sum_divergences<Logit, false>(block, rows, pair.classes);
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      const bool good = write_row(params, block, r, first + r);
      if (!good && first_bad_label == kNoBadLabel) first_bad_label = first + r;
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
  const LossWeights<Real> weights(pair.co_lambda);
  const V at_label = broadcast(label_gradient(weights));
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
        const V value = class_gradient(p, q, delta, broadcast(statistics.kl12), weights) + label_part;
        store_columns(gradient1, j, n, value * weight1, whole);
      }
      if (gradient2 != nullptr) {
        const V value = class_gradient(q, p, -delta, broadcast(statistics.kl21), weights) + label_part;
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
      row_gradient_zero(gradient1, pair.classes);
      gradient1 = nullptr;
    }
    if (!trains2) {
      row_gradient_zero(gradient2, pair.classes);
      gradient2 = nullptr;
    }
    if (gradient1 == nullptr && gradient2 == nullptr) continue;
    const Real upstream = grad_output[i * params.grad_stride];
    row_gradient<Logit, kWithKl>(pair, z1, z2, label.value, statistics, upstream * scale1, upstream * scale2, gradient1,
                                 gradient2);
  }
}

// --- choice of the template -----------------------------------------------------------------------------------------

// Calls body(a null pointer of the logit type).
template <class Body>
JF_INLINE auto with_logit_type(LogitType type, Body body) {
  switch (type) {
    case LogitType::float16:
      return body(static_cast<float16*>(nullptr));
    case LogitType::bfloat16:
      return body(static_cast<bfloat16*>(nullptr));
    case LogitType::float64:
      return body(static_cast<double*>(nullptr));
    case LogitType::float32:
      break;
  }
  return body(static_cast<float*>(nullptr));
}

// Calls body(a null pointer of the logit type, whether KL is evaluated).
template <class Body>
JF_INLINE auto with_types(const LogitPair& pair, Body body) {
  return with_logit_type(pair.type, [&](auto type) {
    return pair.co_lambda != 0.0 ? body(type, std::true_type{}) : body(type, std::false_type{});
  });
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
