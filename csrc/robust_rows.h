// What a row of a robust loss writes, on every device.
#pragma once

#include "joint_loss.h"
#include "joint_loss_math.h"
#include "labels.h"

namespace jocor_fast {

// `row` is zeros where the label is not valid.
template <class Real>
JF_INLINE void write_robust_row(const RobustRowParams& params, int64_t i, const Label& label, RobustRow<Real> row) {
  if (!label.valid && !label.ignored) row.loss = Real(NAN);
  static_cast<Real*>(params.per_sample)[i] = row.loss;
  static_cast<RobustStatistics<Real>*>(params.statistics)[i] = row.statistics;
  if (params.row_state == nullptr) return;
  const bool in_sieve = row.in_sieve || !(row.loss - row.loss == Real(0));  // else num_nonfinite would miss it
  params.row_state[i] = label.ignored ? kIneligible : (params.sieve && in_sieve ? kEligibleAndInSieve : kEligible);
}

}  // namespace jocor_fast
