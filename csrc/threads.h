// How the rows of a batch are shared out over the CPU's threads.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>

#include "joint_loss.h"

namespace jocor_fast {

// Calls body(first row, row past the last) for the share of each thread. Below about so many logits a second thread, on
// a busy core, costs more than it saves.
template <class Body>
void share_out_rows(int64_t rows, int64_t classes, const Body& body) {
  constexpr int64_t kLogitsPerThread = 32768;
  at::parallel_for(0, rows, std::max<int64_t>(1, kLogitsPerThread / classes), body);
}

// The same for a body that returns the first row with an invalid label, or kNoBadLabel: the first of all.
template <class Body>
int64_t first_bad_row(int64_t rows, int64_t classes, const Body& body) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> first_bad{kNone};
  share_out_rows(rows, classes, [&](int64_t begin, int64_t end) {
    const int64_t bad = body(begin, end);
    if (bad == cpu::kNoBadLabel) return;
    int64_t seen = first_bad.load();
    while (bad < seen && !first_bad.compare_exchange_weak(seen, bad)) {
    }
  });
  const int64_t bad = first_bad.load();
  return bad == kNone ? cpu::kNoBadLabel : bad;
}

}  // namespace jocor_fast
