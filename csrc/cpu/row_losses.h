// Step 1: the loss of every row and the four numbers that its gradient needs again.
//
// Included by one .cpp file per instruction set (see simd.h).
#pragma once

#include "row_vectors.h"

namespace jocor_fast::cpu::JF_ISA {

// Where a row's exponentials are kept for the phases and steps that follow. `block`: in the block, which takes as many
// rows as fit in the first-level cache. `all`: in the memory of the gradients, if these are computed next. `nothing`:
// they are not needed (lambda = 0), or the row is too long; it is then a block of its own and computes them again.
enum class Keep { nothing, block, all };

constexpr int64_t kKeptExponentials = 2048;  // of each network

template <class Logit>
struct Block {
  using Real = RealOf<Logit>;
  const Logit* z1[kBlockRows];
  const Logit* z2[kBlockRows];
  alignas(64) Real max1[kBlockRows], max2[kBlockRows];          // of a row's logits
  alignas(64) Real sum1[kBlockRows], sum2[kBlockRows];          // of exp(z - max)
  alignas(64) Real log_sum1[kBlockRows], log_sum2[kBlockRows];  // lse without its large part, the maximum
  alignas(64) Real kl12[kBlockRows], kl21[kBlockRows], symmetric_kl[kBlockRows];
  Vector<Real> lanes[3][kBlockRows];  // what a phase adds up in vectors, from which it makes the numbers above
  Real* kept1[kBlockRows];            // a row's exponentials, where they are kept
  Real* kept2[kBlockRows];
  alignas(64) Real exp1[kKeptExponentials], exp2[kKeptExponentials];
};

template <class Logit>
JF_INLINE void find_maxima(Block<Logit>& block, int64_t rows, int64_t classes) {
  using Real = RealOf<Logit>;
  for (int64_t r = 0; r < rows; ++r) {
    const auto maxima = vector_maxima(block.z1[r], block.z2[r], classes);
    block.lanes[0][r] = maxima.first;
    block.lanes[1][r] = maxima.second;
  }
  const auto largest = [](auto a, auto b) __attribute__((always_inline)) { return larger(a, b); };
  reduce_rows<Real>(block.lanes[0], rows, block.max1, largest);
  reduce_rows<Real>(block.lanes[1], rows, block.max2, largest);
}

template <class Logit, Keep kKeep>
JF_INLINE void sum_exponentials(Block<Logit>& block, int64_t rows, int64_t classes) {
  using Real = RealOf<Logit>;
  for (int64_t r = 0; r < rows; ++r) {
    const Real max1 = block.max1[r], max2 = block.max2[r];
    const auto add = [&](int64_t j, int n, auto whole, Vector<Real>* sums) __attribute__((always_inline)) {
      const Vector<Real> exp1 = exp_nonpositive(load_columns(block.z1[r], j, n, whole) - max1);
      const Vector<Real> exp2 = exp_nonpositive(load_columns(block.z2[r], j, n, whole) - max2);
      sums[0] += exp1;
      sums[1] += exp2;
      if constexpr (kKeep == Keep::block) {  // padded to whole vectors
        store(block.kept1[r] + j, exp1);
        store(block.kept2[r] + j, exp2);
      } else if constexpr (kKeep == Keep::all) {
        store_columns(block.kept1[r], j, n, exp1, whole);
        store_columns(block.kept2[r], j, n, exp2, whole);
      }
    };
    const auto sums = vector_sums_over_columns<Real, 2>(classes, add);
    block.lanes[0][r] = sums[0];
    block.lanes[1][r] = sums[1];
  }
  sum_rows<Real>(block.lanes[0], rows, block.sum1);
  sum_rows<Real>(block.lanes[1], rows, block.sum2);
}

// The sums, by lanes, for KL(p || q), KL(q || p) and J of a row. `Finite`: whether no logit is -inf, an assumption; the
// sums are not finite where it is wrong.
template <class Logit, Keep kKept, class Finite>
JF_INLINE std::array<Vector<RealOf<Logit>>, 3> divergences(const Block<Logit>& block, int64_t r, int64_t classes,
                                                           const JointLoss<RealOf<Logit>>& loss, Finite) {
  using Real = RealOf<Logit>;
  using V = Vector<Real>;
  const Real scale1 = Real(1) / block.sum1[r], scale2 = Real(1) / block.sum2[r];
  const Real max1 = block.max1[r], max2 = block.max2[r];
  const Real log_sum_difference = block.log_sum1[r] - block.log_sum2[r];
  const auto add = [&](int64_t j, int n, auto whole, V* sums) __attribute__((always_inline)) {
    const V shifted1 = load_columns(block.z1[r], j, n, whole) - max1;
    const V shifted2 = load_columns(block.z2[r], j, n, whole) - max2;
    V exp1, exp2;
    if constexpr (kKept == Keep::nothing) {
      exp1 = exp_nonpositive(shifted1);
      exp2 = exp_nonpositive(shifted2);
    } else if constexpr (kKept == Keep::block) {
      exp1 = load(block.kept1[r] + j);
      exp2 = load(block.kept2[r] + j);
    } else {
      exp1 = load_columns_or_zeros(block.kept1[r], j, n, whole);
      exp2 = load_columns_or_zeros(block.kept2[r], j, n, whole);
    }
    const V p = exp1 * scale1, q = exp2 * scale2;
    const V delta = (shifted1 - shifted2) - log_sum_difference;
    if constexpr (Finite::value && decltype(whole)::value) {
      loss.add_finite_class(p, q, delta, sums);
    } else {  // a vector that is not whole is filled up with -inf
      loss.add_class(p, q, delta, sums);
    }
  };
  return vector_sums_over_columns<Real, 3>(classes, add);
}

template <class Logit, Keep kKept>
JF_INLINE void sum_divergences(Block<Logit>& block, int64_t rows, int64_t classes,
                               const JointLoss<RealOf<Logit>>& loss) {
  using Real = RealOf<Logit>;
  for (int64_t r = 0; r < rows; ++r) {
    const auto sums = divergences<Logit, kKept>(block, r, classes, loss, std::true_type{});
    for (int s = 0; s < 3; ++s) block.lanes[s][r] = sums[s];
  }
  sum_rows<Real>(block.lanes[0], rows, block.kl12);
  sum_rows<Real>(block.lanes[1], rows, block.kl21);
  sum_rows<Real>(block.lanes[2], rows, block.symmetric_kl);
  for (int64_t r = 0; r < rows; ++r) {
    if (__builtin_isfinite(block.kl12[r] + block.kl21[r] + block.symmetric_kl[r])) continue;
    const auto sums = divergences<Logit, kKept>(block, r, classes, loss, std::false_type{});
    block.kl12[r] = sum_of_lanes<Real>(sums[0]);
    block.kl21[r] = sum_of_lanes<Real>(sums[1]);
    block.symmetric_kl[r] = sum_of_lanes<Real>(sums[2]);
  }
}

template <class Real>
JF_INLINE void take_inverse_sums(const Real* log_sums, Real* results) {
  for (int64_t r = 0; r < kBlockRows; r += Lanes<Real>::count)
    store(results + r, inverse_sums<Real>(load(log_sums + r)));
}

template <class Real>
JF_INLINE void write_at(void* array, int64_t row, Real value) {
  if (array != nullptr) static_cast<Real*>(array)[row] = value;
}

// Writes the results of a row. Returns whether its label is valid or ignored.
template <class Logit>
JF_INLINE bool write_row(const RowParams& params, const Block<Logit>& block, int64_t r, int64_t row,
                         const JointLoss<RealOf<Logit>>& loss) {
  using Real = RealOf<Logit>;
  const LogitPair& pair = params.pair;
  const Label label = read_label(pair, row);
  Real loss1 = 0, loss2 = 0, joint = 0;
  if (label.valid) {
    // log_sum - (z_y - max) and not lse - z_y: the large numbers leave before the small ones are added
    loss1 = block.log_sum1[r] - (logit_at(block.z1[r], label.value) - block.max1[r]);
    loss2 = block.log_sum2[r] - (logit_at(block.z2[r], label.value) - block.max2[r]);
    joint = loss.of_row(loss1, loss2, block.symmetric_kl[r]);
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
  const JointLoss<Real> loss(pair);
  const int64_t padded_classes = (pair.classes + Lanes<Real>::count - 1) / Lanes<Real>::count * Lanes<Real>::count;
  const bool keep_all = params.exponentials1 != nullptr;
  const bool keep = kWithKl && !keep_all && padded_classes <= kKeptExponentials;
  const int64_t fitting_rows = keep ? kKeptExponentials / padded_classes : (kWithKl && !keep_all ? 1 : kBlockRows);
  const int64_t block_rows = fitting_rows < kBlockRows ? fitting_rows : kBlockRows;
  Block<Logit> block;
  for (int64_t r = 0; r < kBlockRows; ++r) {
    for (auto& lanes : block.lanes) lanes[r] = Vector<Real>{};        // past the last row
    block.sum1[r] = block.sum2[r] = Real(1);                          // where they are not computed
    block.kl12[r] = block.kl21[r] = block.symmetric_kl[r] = Real(0);  // what stays where lambda = 0
  }
  for (int64_t r = 0; keep && r < block_rows; ++r) {
    block.kept1[r] = block.exp1 + r * padded_classes;
    block.kept2[r] = block.exp2 + r * padded_classes;
  }

  int64_t first_bad_label = kNoBadLabel;
  for (int64_t first = begin; first < end; first += block_rows) {
    const int64_t rows = end - first < block_rows ? end - first : block_rows;
    for (int64_t r = 0; r < rows; ++r) {
      block.z1[r] = static_cast<const Logit*>(pair.logits1) + (first + r) * pair.row_stride1;
      block.z2[r] = static_cast<const Logit*>(pair.logits2) + (first + r) * pair.row_stride2;
    }
    find_maxima(block, rows, pair.classes);
    if (keep_all) {
      if constexpr (std::is_same_v<Logit, Real>) {
        for (int64_t r = 0; r < rows; ++r) {
          block.kept1[r] = static_cast<Real*>(params.exponentials1) + (first + r) * pair.classes;
          block.kept2[r] = static_cast<Real*>(params.exponentials2) + (first + r) * pair.classes;
        }
        sum_exponentials<Logit, Keep::all>(block, rows, pair.classes);
      }
    } else if (keep) {
      sum_exponentials<Logit, Keep::block>(block, rows, pair.classes);
    } else {
      sum_exponentials<Logit, Keep::nothing>(block, rows, pair.classes);
    }
    take_logarithms(block.sum1, block.log_sum1);
    take_logarithms(block.sum2, block.log_sum2);
    if constexpr (kWithKl) {
      if (keep_all) {
        if constexpr (std::is_same_v<Logit, Real>) sum_divergences<Logit, Keep::all>(block, rows, pair.classes, loss);
      } else if (keep) {
        sum_divergences<Logit, Keep::block>(block, rows, pair.classes, loss);
      } else {
        sum_divergences<Logit, Keep::nothing>(block, rows, pair.classes, loss);
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      const bool good = write_row(params, block, r, first + r, loss);
      if (!good && first_bad_label == kNoBadLabel) first_bad_label = first + r;
    }
    if (keep_all) {
      take_inverse_sums(block.log_sum1, block.sum1);
      take_inverse_sums(block.log_sum2, block.sum2);
      for (int64_t r = 0; r < rows; ++r) {
        static_cast<KeptRow<Real>*>(params.kept_rows)[first + r] = {block.max1[r], block.max2[r], block.sum1[r],
                                                                    block.sum2[r]};
      }
    }
  }
  return first_bad_label;
}

inline int64_t row_losses(const RowParams& params, int64_t begin, int64_t end) {
  return with_types(params.pair, [&](auto* type, auto with_kl) {
    return row_losses_of<std::remove_pointer_t<decltype(type)>, decltype(with_kl)::value>(params, begin, end);
  });
}

}  // namespace jocor_fast::cpu::JF_ISA
