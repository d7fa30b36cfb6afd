// Step 2 on the CPU: the k smallest finite losses, by a radix search for the k-th smallest key. One sweep a digit, no
// memory beyond a histogram, and exactly the choice of numpy.argsort(kind="stable")[:k].
#include <algorithm>

#include "../joint_loss.h"
#include "../ranked_rows.h"

namespace jocor_fast::cpu {
namespace {

bool only_differing_rows(const SelectionParams& params) {
  if (params.disagreement == Disagreement::ignored || params.row_state == nullptr) return false;
  if (params.disagreement == Disagreement::required) return true;
  return std::find(params.row_state, params.row_state + params.rows, kEligibleAndPredictionsDiffer) !=
         params.row_state + params.rows;
}

// Rows with a key below `key` are chosen, and the first `ties` of those that have it.
template <class Bits>
struct Threshold {
  Bits key;
  int64_t ties;
};

template <class Real>
Threshold<typename RankedRows<Real>::Bits> find_threshold(const RankedRows<Real>& rows, int64_t num_rows, int64_t k) {
  using Bits = typename RankedRows<Real>::Bits;
  constexpr int kDigitBits = 8;
  constexpr int kDigits = 1 << kDigitBits;
  Bits prefix = 0;  // the digits of the k-th smallest key that are known so far
  Bits known = 0;   // mask of those digits
  int64_t remaining = k;
  for (int shift = sizeof(Bits) * 8 - kDigitBits; shift >= 0; shift -= kDigitBits) {
    // Losses share their leading digits, so neighbours hit the same counter: two histograms in turn halve that chain.
    int64_t histogram[2][kDigits] = {};
    for (int64_t i = 0; i < num_rows; ++i) {
      if (!rows.eligible(i) || !rows.finite(i)) continue;
      const Bits key = rows.key(i);
      if ((key & known) == prefix) ++histogram[i & 1][(key >> shift) & (kDigits - 1)];
    }
    int64_t digit = 0;
    for (;; ++digit) {
      const int64_t count = histogram[0][digit] + histogram[1][digit];
      if (count >= remaining) break;
      remaining -= count;
    }
    prefix |= static_cast<Bits>(digit) << shift;
    known |= static_cast<Bits>(kDigits - 1) << shift;
    if (histogram[0][digit] + histogram[1][digit] == remaining) {  // all keys with this prefix: no digit below decides
      return {static_cast<Bits>(prefix | ~known), remaining};
    }
  }
  return {prefix, remaining};
}

template <class Real>
void select(const SelectionParams& params) {
  const RankedRows<Real> rows(params, only_differing_rows(params));
  int64_t eligible = 0, finite = 0;
  for (int64_t i = 0; i < params.rows; ++i) {
    const bool is_eligible = rows.eligible(i);
    eligible += is_eligible;
    finite += is_eligible && rows.finite(i);
  }
  const int64_t k = rows_to_keep(params, eligible, finite);

  using Bits = typename RankedRows<Real>::Bits;
  Threshold<Bits> threshold{static_cast<Bits>(~Bits{0}), finite};
  if (k < finite) threshold = k > 0 ? find_threshold(rows, params.rows, k) : Threshold<Bits>{0, 0};

  double sum = 0;
  const Real* values = static_cast<const Real*>(params.mean_of);
  for (int64_t i = 0; i < params.rows; ++i) {
    bool chosen = false;
    if (rows.eligible(i) && rows.finite(i)) {  // before `selected` is written, which row_state may be
      const Bits key = rows.key(i);
      chosen = key < threshold.key || (key <= threshold.key && threshold.ties > 0);
      if (chosen && key == threshold.key) --threshold.ties;
    }
    params.selected[i] = chosen;
    if (chosen && values != nullptr) sum += static_cast<double>(values[i]);
  }
  if (params.num_selected != nullptr) *params.num_selected = k;
  if (params.num_nonfinite != nullptr) *params.num_nonfinite = eligible - finite;
  if (params.mean != nullptr) {
    const double offset = params.mean_offset != nullptr ? *static_cast<const Real*>(params.mean_offset) : 0.0;
    *static_cast<Real*>(params.mean) = static_cast<Real>((k > 0 ? sum / k : 0.0) + offset);
  }
}

}  // namespace

void select_small_loss(const SelectionParams& params) {
  if (params.is_double) {
    select<double>(params);
  } else {
    select<float>(params);
  }
}

}  // namespace jocor_fast::cpu
