// Step 2 on the CPU: the k smallest finite losses, by a radix search for the k-th smallest key. One sweep a digit, no
// memory beyond a histogram, and exactly the choice of numpy.argsort(kind="stable")[:k].
#include <cmath>
#include <cstring>
#include <type_traits>

#include "../joint_loss.h"
#include "../joint_loss_math.h"

namespace jocor_fast::cpu {
namespace {

// Unsigned keys in the order of the losses; -0 and +0 get the same one.
struct Key32 {
  using Bits = uint32_t;
  static Bits of(float loss) {
    Bits bits;
    loss += 0.0f;  // -0 + 0 is +0
    std::memcpy(&bits, &loss, sizeof(bits));
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  }
};

struct Key64 {
  using Bits = uint64_t;
  static Bits of(double loss) {
    Bits bits;
    loss += 0.0;
    std::memcpy(&bits, &loss, sizeof(bits));
    return bits & (uint64_t{1} << 63) ? ~bits : bits | (uint64_t{1} << 63);
  }
};

template <class Real>
class Rows {
 public:
  using Key = std::conditional_t<sizeof(Real) == 4, Key32, Key64>;
  using Bits = typename Key::Bits;

  explicit Rows(const SelectionParams& params)
      : params_(params),
        losses_(static_cast<const Real*>(params.losses)),
        also_finite_(static_cast<const Real*>(params.also_finite)) {
    if (params.require_disagreement && params.row_state != nullptr) {
      for (int64_t i = 0; i < params.rows && required_state_ == 0; ++i) {
        if (params.row_state[i] == kEligibleAndPredictionsDiffer) required_state_ = kEligibleAndPredictionsDiffer;
      }
    }
  }

  bool eligible(int64_t row) const {
    if (params_.row_state == nullptr) return true;
    const uint8_t state = params_.row_state[row];
    return required_state_ != 0 ? state == required_state_ : state != kIneligible;
  }

  bool finite(int64_t row) const {
    return std::isfinite(losses_[row]) && (also_finite_ == nullptr || std::isfinite(also_finite_[row]));
  }

  Bits key(int64_t row) const { return Key::of(losses_[row]); }

 private:
  const SelectionParams& params_;
  const Real* losses_;
  const Real* also_finite_;
  uint8_t required_state_ = 0;  // 0: any that is eligible
};

// Rows with a key below `key` are chosen, and the first `ties` of those that have it.
template <class Bits>
struct Threshold {
  Bits key;
  int64_t ties;
};

template <class Real>
Threshold<typename Rows<Real>::Bits> find_threshold(const Rows<Real>& rows, int64_t num_rows, int64_t k) {
  using Bits = typename Rows<Real>::Bits;
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
  const Rows<Real> rows(params);
  int64_t eligible = 0, finite = 0;
  for (int64_t i = 0; i < params.rows; ++i) {
    const bool is_eligible = rows.eligible(i);
    eligible += is_eligible;
    finite += is_eligible && rows.finite(i);
  }
  int64_t k = params.num_keep;
  if (params.num_keep_pointer != nullptr) {
    k = *params.num_keep_pointer;
  } else if (k < 0) {
    k = num_keep(eligible, params.forget_rate, /*round_up=*/true);
  }
  k = k < 0 ? 0 : (k > finite ? finite : k);

  using Bits = typename Rows<Real>::Bits;
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
  if (params.mean != nullptr) *static_cast<Real*>(params.mean) = static_cast<Real>(k > 0 ? sum / k : 0.0);
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
