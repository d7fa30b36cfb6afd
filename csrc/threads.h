// How the rows of a batch are shared out over the CPU's threads.
#pragma once

#include <algorithm>
#include <cstdint>

namespace jocor_fast {

// The fewest rows that a thread is started for: below about so many logits a second one, on a busy core, costs more.
inline int64_t rows_per_thread(int64_t classes) {
  constexpr int64_t kLogitsPerThread = 32768;
  return std::max<int64_t>(1, kLogitsPerThread / classes);
}

}  // namespace jocor_fast
