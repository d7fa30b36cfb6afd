// Runs the threads of a block as threads of the host, for the sanitizers. A barrier orders memory, a shuffle does not
// (on a device neither): its exchange is relaxed: ThreadSanitizer sees a race where a kernel relies on a
// shuffle to publish what another lane has written.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <thread>
#include <vector>

#include "block.h"

thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace cuda_on_host {

// Two warps: enough for a race, and few threads to switch between. Blocks would run one after the other: one is enough.
Settings settings{.most_threads = 64, .most_blocks = 1};
const char* last_error = nullptr;

namespace {

struct Warp {
  std::atomic<uint64_t> exchanged[2][kWarp];
  std::atomic<unsigned> arrived{0};
  std::atomic<unsigned> meetings{0};
};

struct Block {
  explicit Block(unsigned threads) : threads(threads), warps(threads / kWarp) {}

  const unsigned threads;
  std::deque<Warp> warps;
  std::atomic<unsigned> at_barrier{0}, barriers{0};
  std::atomic<int> predicates{0}, result{0};
  std::atomic<unsigned> not_waited{0};
};

// Sleep while the number is `value`, or wake up to `value` sleepers. The system call itself, for the library's wait
// would order memory.
void futex(std::atomic<unsigned>& number, int operation, unsigned value) {
  syscall(SYS_futex, &number, operation, value, nullptr, nullptr, 0);
}

Block* block = nullptr;
thread_local bool waited_for_previous = false;
thread_local uint64_t met[kWarp];

}  // namespace

const uint64_t* meet_warp(Meeting, unsigned, uint64_t bits) {
  constexpr auto relaxed = std::memory_order_relaxed;
  Warp& warp = block->warps[threadIdx.x / kWarp];
  const unsigned meeting = warp.meetings.load(relaxed);
  warp.exchanged[meeting % 2][threadIdx.x % kWarp].store(bits, relaxed);
  if (warp.arrived.fetch_add(1, relaxed) + 1 == kWarp) {
    warp.arrived.store(0, relaxed);
    warp.meetings.store(meeting + 1, relaxed);
    futex(warp.meetings, FUTEX_WAKE_PRIVATE, kWarp);
  }
  while (warp.meetings.load(relaxed) == meeting) futex(warp.meetings, FUTEX_WAIT_PRIVATE, meeting);
  for (unsigned lane = 0; lane < kWarp; ++lane) met[lane] = warp.exchanged[meeting % 2][lane].load(relaxed);
  return met;
}

int meet_block(bool predicate) {
  constexpr auto relaxed = std::memory_order_relaxed;
  Block& b = *block;
  const unsigned barrier = b.barriers.load(relaxed);
  b.predicates.fetch_add(predicate, relaxed);
  if (b.at_barrier.fetch_add(1, std::memory_order_acq_rel) + 1 == b.threads) {
    b.result.store(b.predicates.load(relaxed), relaxed);
    b.predicates.store(0, relaxed);
    b.at_barrier.store(0, relaxed);
    b.barriers.store(barrier + 1, std::memory_order_release);
    futex(b.barriers, FUTEX_WAKE_PRIVATE, b.threads);
  }
  while (b.barriers.load(std::memory_order_acquire) == barrier) futex(b.barriers, FUTEX_WAIT_PRIVATE, barrier);
  return b.result.load(relaxed);
}

void wait_for_previous_kernel() { waited_for_previous = true; }

unsigned add_atomically(unsigned* counter, unsigned value) {
  return __atomic_fetch_add(counter, value, __ATOMIC_RELAXED);
}

// A block at a time has no others: a kernel is run as on a device without clusters.
unsigned rank_in_cluster() { return 0; }
unsigned blocks_of_cluster() { return 1; }
void arrive_at_cluster_barrier() {}
void wait_at_cluster_barrier() { meet_block(false); }
void* shared_memory_of(const void* mine, unsigned) { return const_cast<void*>(mine); }

const char* run_grid(dim3 grid, dim3 block_size, bool linked, bool, const std::function<void()>& kernel) {
  return for_each_block(grid, block_size, [&](unsigned index, unsigned threads, dim3 size) -> const char* {
    Block this_block(threads);
    block = &this_block;
    std::vector<std::thread> pool;
    for (unsigned i = 0; i < threads; ++i) {
      pool.emplace_back([&, i] {
        threadIdx = dim3(i, 0, 0);
        blockIdx = dim3(index, 0, 0);
        blockDim = dim3(threads);
        gridDim = size;
        waited_for_previous = false;
        kernel();
        if (!waited_for_previous) this_block.not_waited.fetch_add(1, std::memory_order_relaxed);
      });
    }
    for (std::thread& thread : pool) thread.join();
    return linked && this_block.not_waited.load() > 0 ? kNotWaited : nullptr;
  });
}

}  // namespace cuda_on_host
