// The rules of the selection, on every device: which rows are eligible, in which order they come, how many are kept,
// and what is reported of them.
#pragma once

#include <cmath>
#include <cstring>

#include "joint_loss.h"
#include "joint_loss_math.h"

namespace jocor_fast {

template <class Real>
struct OrderBits;
template <>
struct OrderBits<float> {
  using type = uint32_t;
};
template <>
struct OrderBits<double> {
  using type = uint64_t;
};

// Unsigned keys in the order of the losses; -0 and +0 get the same one.
template <class Real>
JF_INLINE typename OrderBits<Real>::type order_key(Real loss) {
  using Bits = typename OrderBits<Real>::type;
  constexpr Bits sign = Bits{1} << (sizeof(Bits) * 8 - 1);
  Bits bits;
  loss += Real(0);  // -0 + 0 is +0
  std::memcpy(&bits, &loss, sizeof(bits));
  const Bits all_if_negative = Bits{0} - (bits >> (sizeof(Bits) * 8 - 1));
  return bits ^ (all_if_negative | sign);
}

// The loss of a key, but for the sign of a zero.
template <class Real>
JF_INLINE Real loss_of_key(typename OrderBits<Real>::type key) {
  using Bits = typename OrderBits<Real>::type;
  constexpr Bits sign = Bits{1} << (sizeof(Bits) * 8 - 1);
  const Bits bits = key ^ ((key & sign) != 0 ? sign : ~Bits{0});
  Real loss;
  std::memcpy(&loss, &bits, sizeof(loss));
  return loss;
}

template <class Real>
JF_INLINE bool is_finite(Real x) {
  return x - x == Real(0);
}

// Some rows of a batch: first, first + step, first + 2 step ..., as far as they lie below first + left.
struct SteppedRows {
  int64_t first;
  int step;
  int left;  // may be negative

  JF_INLINE bool holds(int i) const { return i * step < left; }
};

// The rows of one selection. `only_differing`: only those on which the predictions differ (of a robust loss: those in
// its sieve) are eligible.
template <class Real>
class RankedRows {
 public:
  using Bits = typename OrderBits<Real>::type;
  // Stands for a row that cannot be chosen; no finite loss has this key.
  static constexpr Bits kNoCandidate = ~Bits{0};

  JF_INLINE RankedRows(const SelectionParams& params, bool only_differing)
      : losses_(static_cast<const Real*>(params.losses)),
        also_finite_(static_cast<const Real*>(params.also_finite)),
        row_state_(params.row_state),
        only_differing_(only_differing) {}

  JF_INLINE bool eligible(int64_t row) const { return row_state_ == nullptr || is_eligible(row_state_[row]); }

  JF_INLINE bool finite(int64_t row) const {
    return is_finite(losses_[row]) && (also_finite_ == nullptr || is_finite(also_finite_[row]));
  }

  JF_INLINE Bits key(int64_t row) const { return order_key(losses_[row]); }

  JF_INLINE bool all_are_eligible() const { return row_state_ == nullptr; }

  // Loads the keys of some rows: kNoCandidate for a row that cannot be chosen or does not exist. Returns how many of
  // them are eligible, or 0 where every row of the batch is. Each array is read for all rows before the first number is
  // used: on a GPU all loads are in flight together. A row is excluded by setting its loss to NaN: a truth value for
  // each row would use up the few predicate registers that a GPU has.
  template <int count>
  JF_INLINE int load(const SteppedRows& rows, Bits (&keys)[count]) const {
    const Real nan = NAN;
    Real losses[count], others[count];
    uint8_t states[count];
    read(losses_, rows, nan, losses);
    if (also_finite_ != nullptr) read(also_finite_, rows, nan, others);
    if (row_state_ != nullptr) read(row_state_, rows, uint8_t{kIneligible}, states);

    int eligible = 0;
    if (row_state_ != nullptr) {
      for (int i = 0; i < count; ++i) {
        eligible += is_eligible(states[i]);
        losses[i] = is_eligible(states[i]) ? losses[i] : nan;
      }
    }
    if (also_finite_ != nullptr) {
      for (int i = 0; i < count; ++i) losses[i] = is_finite(others[i]) ? losses[i] : nan;
    }
    for (int i = 0; i < count; ++i) keys[i] = is_finite(losses[i]) ? order_key(losses[i]) : kNoCandidate;
    return eligible;
  }

 private:
  JF_INLINE bool is_eligible(uint8_t state) const {
    return only_differing_ ? state == kEligibleAndPredictionsDiffer : state != kIneligible;
  }

  template <class T, int count>
  JF_INLINE static void read(const T* array, const SteppedRows& rows, T otherwise, T (&values)[count]) {
    const T* next = array + rows.first;
    for (int i = 0; i < count; ++i, next += rows.step) values[i] = rows.holds(i) ? *next : otherwise;
  }

  const Real* losses_;
  const Real* also_finite_;
  const uint8_t* row_state_;
  bool only_differing_;
};

// How many rows a selection keeps. A number in device memory is read when this is constructed: a kernel constructs it
// before it loads the rows, and both loads are in flight together.
class RowsToKeep {
 public:
  JF_INLINE explicit RowsToKeep(const SelectionParams& params)
      : by_rate_(params.num_keep_pointer == nullptr && params.num_keep < 0),
        round_up_(!params.round_down),
        number_(params.num_keep_pointer != nullptr ? *params.num_keep_pointer : params.num_keep),
        rate_(params.forget_rate_pointer != nullptr ? *params.forget_rate_pointer : params.forget_rate) {}

  // k, clamped to the rows that may be chosen: the eligible ones with a finite loss.
  JF_INLINE int64_t of(int64_t eligible, int64_t finite) const {
    const int64_t k = by_rate_ ? num_keep(eligible, rate_, round_up_) : number_;
    return k < 0 ? 0 : (k > finite ? finite : k);
  }

 private:
  bool by_rate_, round_up_;
  int64_t number_;
  double rate_;
};

// Writes the numbers of a selection of k rows; `sum` is the sum of `mean_of` over them.
template <class Real>
JF_INLINE void write_numbers(const SelectionParams& params, int64_t k, int64_t eligible, int64_t finite, double sum) {
  if (params.num_selected != nullptr) *params.num_selected = k;
  if (params.num_nonfinite != nullptr) *params.num_nonfinite = eligible - finite;
  if (params.mean != nullptr) {
    const double offset = params.mean_offset != nullptr ? *static_cast<const Real*>(params.mean_offset) : 0.0;
    *static_cast<Real*>(params.mean) = static_cast<Real>((k > 0 ? sum / k : 0.0) + offset);
  }
}

}  // namespace jocor_fast
