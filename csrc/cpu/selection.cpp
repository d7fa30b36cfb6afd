// Step 2 on the CPU: the k smallest finite losses, by a search for the k-th smallest key. No memory beyond a histogram,
// no branch that depends on a loss (half of them would be mispredicted), and exactly the choice of
// numpy.argsort(kind="stable")[:k].
#include <algorithm>
#include <array>

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

// The keys of a block of rows, RankedRows::kNoCandidate for a row that cannot be chosen. All sweeps read their rows
// through for_each_block: their own loops handle keys alone.
constexpr int64_t kBlock = 512;

template <class Real>
using Keys = std::array<typename RankedRows<Real>::Bits, kBlock>;

template <class Real, class Use>
void for_each_block(const RankedRows<Real> rows, int64_t num_rows, Use use) {
  Keys<Real> keys;
  for (int64_t begin = 0; begin < num_rows; begin += kBlock) {
    const int64_t count = std::min(kBlock, num_rows - begin);
    // Two loops without a branch between rows: compilers make vectors of them, and of both in one they do not.
    for (int64_t i = 0; i < count; ++i) {
      const auto key = rows.key(begin + i);
      keys[i] = rows.finite(begin + i) ? key : RankedRows<Real>::kNoCandidate;
    }
    for (int64_t i = 0; i < count; ++i) {
      keys[i] = rows.eligible(begin + i) ? keys[i] : RankedRows<Real>::kNoCandidate;
    }
    use(begin, count, keys);
  }
}

// What the first sweep finds out. Losses share their leading bits: digits of the keys themselves would fall into a few
// bins; digits of their distance from the lowest key tell the rows apart in one or two further sweeps.
template <class Bits>
struct Candidates {
  int64_t eligible = 0;
  int64_t finite = 0;
  Bits lowest = ~Bits{0};
  Bits highest = 0;
};

template <class Real>
Candidates<typename RankedRows<Real>::Bits> survey(const RankedRows<Real>& rows, int64_t num_rows) {
  Candidates<typename RankedRows<Real>::Bits> found;
  for_each_block(rows, num_rows, [&](int64_t begin, int64_t count, const Keys<Real>& keys) {
    auto block = found;
    for (int64_t i = 0; i < count; ++i) {
      const bool candidate = keys[i] != RankedRows<Real>::kNoCandidate;
      block.eligible += rows.eligible(begin + i);
      block.finite += candidate;
      block.lowest = std::min(block.lowest, keys[i]);
      block.highest = std::max(block.highest, candidate ? keys[i] : 0);
    }
    found = block;
  });
  return found;
}

// Rows with a key below `key` are chosen, and the first `ties` of those that have it.
template <class Bits>
struct Threshold {
  Bits key;
  int64_t ties;
};

// The k-th smallest key, for 1 <= k <= number of candidates, which have keys in [lowest, highest].
template <class Real>
Threshold<typename RankedRows<Real>::Bits> find_threshold(const RankedRows<Real>& rows, int64_t num_rows, int64_t k,
                                                          typename RankedRows<Real>::Bits lowest,
                                                          typename RankedRows<Real>::Bits highest) {
  using Bits = typename RankedRows<Real>::Bits;
  // More bins take longer to clear and to add up, fewer take more sweeps.
  constexpr int kMostDigitBits = 10;
  const int digit_bits = num_rows <= 512 ? 7 : kMostDigitBits;
  int64_t remaining = k;
  while (lowest < highest) {
    const Bits range = highest - lowest;
    int shift = 0;
    while ((range >> shift) >> digit_bits != 0) ++shift;
    // Neighbours may hit the same counter: two histograms in turn halve that chain. The last bin takes all other rows.
    int64_t histogram[2][(1 << kMostDigitBits) + 1];
    const Bits bins = (range >> shift) + 1;
    std::fill_n(histogram[0], bins + 1, int64_t{0});
    std::fill_n(histogram[1], bins + 1, int64_t{0});
    for_each_block(rows, num_rows, [&](int64_t, int64_t count, const Keys<Real>& keys) {
      for (int64_t i = 0; i < count; ++i) {
        const Bits distance = keys[i] - lowest;  // of a lower key: wraps round to more than the range
        ++histogram[i & 1][distance <= range ? distance >> shift : bins];
      }
    });
    Bits digit = 0;
    int64_t count = 0;
    for (;; ++digit) {
      count = histogram[0][digit] + histogram[1][digit];
      if (count >= remaining) break;
      remaining -= count;
    }
    lowest += digit << shift;
    const Bits width = (Bits{1} << shift) - 1;
    if (highest - lowest > width) highest = lowest + width;
    if (count == remaining) break;  // all keys in this bin are chosen, no digit below decides
  }
  return {highest, remaining};
}

template <class Real>
void select(const SelectionParams& params) {
  using Bits = typename RankedRows<Real>::Bits;
  const RankedRows<Real> rows(params, only_differing_rows(params));
  const Candidates<Bits> found = survey(rows, params.rows);
  const int64_t k = RowsToKeep(params).of(found.eligible, found.finite);

  Threshold<Bits> threshold{0, 0};
  if (k == found.finite) {
    threshold.key = ~Bits{0};  // above every candidate's
  } else if (k > 0) {
    threshold = find_threshold(rows, params.rows, k, found.lowest, found.highest);
  }

  double sums[4] = {};  // additions to one sum wait for each other
  const Real* values = static_cast<const Real*>(params.mean_of);
  for_each_block(rows, params.rows, [&](int64_t begin, int64_t count, const Keys<Real>& keys) {
    uint8_t* selected = params.selected + begin;  // read before, where it is the row_state too
    int64_t ties = threshold.ties;
    for (int64_t i = 0; i < count; ++i) {
      const bool tie = (keys[i] == threshold.key) & (ties > 0);
      selected[i] = (keys[i] < threshold.key) | tie;
      ties -= tie;
    }
    threshold.ties = ties;
    if (values == nullptr) return;
    for (int64_t i = 0; i < count; ++i) {
      const double value = static_cast<double>(values[begin + i]);  // read in any case: a condition would be a branch
      sums[i & 3] += selected[i] != 0 ? value : 0.0;
    }
  });
  const double sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  write_numbers<Real>(params, k, found.eligible, found.finite, sum);
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
