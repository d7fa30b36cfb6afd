// Runs the threads of a block as fibres of one thread of the host. A fibre runs until its lane meets others; then the
// next one that can go on does, in the order of the settings. The blocks of a cluster take turns likewise, from one of
// the cluster's barriers to the next. Nothing is left to chance, so a failing case fails again.
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "block.h"

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace cuda_on_host {

Settings settings;
const char* last_error = nullptr;

namespace {

// `written_before` as it was, while its bytes are garbage.
class Withheld {
 public:
  void take() {
    for (const Bytes& bytes : written_before) {
      const auto* first = static_cast<const char*>(bytes.first);
      contents_.emplace_back(first, first + bytes.count);
      std::memset(bytes.first, 0xA5, bytes.count);
    }
  }
  void clear() {
    for (size_t i = 0; i < contents_.size(); ++i) {
      std::memcpy(written_before[i].first, contents_[i].data(), contents_[i].size());
    }
    contents_.clear();
  }

 private:
  std::vector<std::vector<char>> contents_;
} withheld;

constexpr size_t kStackBytes = 64 * 1024;

// --- a context that can be left and entered again -------------------------------------------------------------------

#if defined(__x86_64__)

// Saves the registers that a function must keep on the stack, and the stack's top in *from; continues at `to`. The
// library's swapcontext does the same with two calls of the kernel, and is some thirty times slower.
asm(R"(
.text
.type cuda_on_host_switch, @function
cuda_on_host_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cuda_on_host_switch, .-cuda_on_host_switch
)");
extern "C" void cuda_on_host_switch(void** from, void* to);

struct Context {
  void* stack_top = nullptr;

  void start_at(void (*function)(), char* stack) {
    void** top = reinterpret_cast<void**>(stack + kStackBytes) - 2;  // a function starts 8 bytes off a multiple of 16
    *top = reinterpret_cast<void*>(function);
    stack_top = top - 6;  // the six registers, of any value
  }
};

void switch_context(Context& from, Context& to) { cuda_on_host_switch(&from.stack_top, to.stack_top); }

#else

struct Context {
  ucontext_t context;

  void start_at(void (*function)(), char* stack) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = kStackBytes;
    makecontext(&context, function, 0);
  }
};

void switch_context(Context& from, Context& to) { swapcontext(&from.context, &to.context); }

#endif

// --- a block --------------------------------------------------------------------------------------------------------

enum class State { ready, waiting, done };

struct Fibre {
  Context context;
  State state = State::ready;
  bool waited_for_previous = false;
  bool arrived_at_cluster_barrier = false;
};

struct Warp {
  uint64_t exchanged[2]
                    [kWarp];  // the lanes' values at this meeting, and at the one before, which some have yet to read
  unsigned parity = 0;
  unsigned arrived = 0;
  Meeting meeting{};
};

class ClusterTurns;

struct Block {
  std::vector<Fibre> fibres;
  std::vector<Warp> warps;
  const std::function<void()>* kernel = nullptr;
  Context scheduler;
  Fibre* running = nullptr;
  unsigned at_barrier = 0;
  int predicates = 0, result = 0;
  unsigned at_cluster_barrier = 0;
  bool barrier_fell = false;  // every thread can go on: the turn passes to the first one
  const char* error = nullptr;
  ClusterTurns* cluster = nullptr;  // or null: a block of its own
  unsigned rank = 0;
};

Block* block = nullptr;  // whose turn it is

void leave(State state) {
  block->running->state = state;
  switch_context(block->running->context, block->scheduler);
}

void run_kernel() {
  (*block->kernel)();
  leave(State::done);
}

void fail(const char* error) {
  block->error = error;
  leave(State::done);
}

void run_until_it_meets_others(unsigned thread) {
  block->running = &block->fibres[thread];
  threadIdx = dim3(thread, 0, 0);
  switch_context(block->scheduler, block->running->context);
}

// Whether a lane of this warp could go on.
bool pass_over_warp(unsigned warp) {
  bool progress = false;
  for (unsigned i = 0; i < kWarp && !block->barrier_fell && block->error == nullptr; ++i) {
    const unsigned thread = warp * kWarp + (settings.descending ? kWarp - 1 - i : i);
    if (block->fibres[thread].state != State::ready) continue;
    run_until_it_meets_others(thread);
    progress = true;
  }
  return progress;
}

bool pass_over_block() {
  bool progress = false;
  block->barrier_fell = false;
  const unsigned warps = block->warps.size();
  for (unsigned i = 0; i < warps && !block->barrier_fell; ++i) {
    while (pass_over_warp(settings.descending ? warps - 1 - i : i)) progress = true;
  }
  return progress;
}

void run_fibres(unsigned index, unsigned threads, dim3 grid, bool linked, const std::function<void()>& kernel) {
  static std::vector<std::unique_ptr<char[]>> all_stacks;  // of each block of a cluster
  if (all_stacks.size() <= block->rank) all_stacks.resize(block->rank + 1);
  std::unique_ptr<char[]>& stacks = all_stacks[block->rank];
  if (stacks == nullptr) stacks.reset(new char[1024 * kStackBytes]);
  block->kernel = &kernel;
  block->fibres.resize(threads);
  block->warps.resize(threads / kWarp);
  blockIdx = dim3(index, 0, 0);
  blockDim = dim3(threads);
  gridDim = grid;
  for (unsigned i = 0; i < threads; ++i) {
    block->fibres[i].context.start_at(run_kernel, stacks.get() + i * kStackBytes);
  }
  while (block->error == nullptr && pass_over_block()) {
  }
  for (const Fibre& fibre : block->fibres) {
    if (block->error != nullptr) break;
    if (fibre.state != State::done) block->error = kNotReached;
    if (linked && !fibre.waited_for_previous) block->error = kNotWaited;
  }
}

// --- a cluster ------------------------------------------------------------------------------------------------------

thread_local char
    place_in_shared_memory;  // of a thread of the host: all its variables lie at the same distance from it

// A thread of the host for each block; one at a time runs, the others wait for their turn.
class ClusterTurns {
 public:
  explicit ClusterTurns(unsigned blocks)
      : places(blocks), barriers(blocks), turn_(settings.descending ? blocks - 1 : 0) {}

  void take(unsigned rank) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return turn_ == rank; });
  }

  // To the next block.
  void pass(unsigned rank) {
    const std::lock_guard lock(mutex_);
    turn_ = settings.descending ? rank + blocks() - 1 : rank + 1;
    turn_ %= blocks();
    changed_.notify_all();
  }

  unsigned blocks() const { return places.size(); }

  std::vector<char*> places;       // of place_in_shared_memory in each block
  std::vector<unsigned> barriers;  // of the cluster that each block has arrived at

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  unsigned turn_;
};

// The turn goes to the next block, and comes back when all have had theirs. Returns whether all are at this barrier.
bool meet_the_other_blocks() {
  Block* const mine = block;
  const dim3 index = blockIdx, thread = threadIdx;
  ClusterTurns& turns = *mine->cluster;
  const unsigned barrier = ++turns.barriers[mine->rank];
  turns.pass(mine->rank);
  turns.take(mine->rank);
  block = mine;
  blockIdx = index;
  threadIdx = thread;
  return *std::min_element(turns.barriers.begin(), turns.barriers.end()) >= barrier;
}

const char* run_cluster(unsigned threads, dim3 grid, bool linked, const std::function<void()>& kernel) {
  ClusterTurns turns(grid.x);
  std::vector<Block> blocks(grid.x);
  std::vector<std::thread> pool;
  for (unsigned rank = 0; rank < grid.x; ++rank) {
    pool.emplace_back([&, rank] {
      turns.take(rank);
      turns.places[rank] = &place_in_shared_memory;
      blocks[rank].cluster = &turns;
      blocks[rank].rank = rank;
      block = &blocks[rank];
      run_fibres(rank, threads, grid, linked, kernel);
      turns.pass(rank);
    });
  }
  for (std::thread& thread : pool) thread.join();
  for (const Block& each : blocks) {
    if (each.error != nullptr) return each.error;
  }
  return nullptr;
}

}  // namespace

const uint64_t* meet_warp(Meeting meeting, unsigned mask, uint64_t bits) {
  if (mask != kWholeWarp) fail(kPartOfWarp);
  const unsigned thread = threadIdx.x;
  Warp& warp = block->warps[thread / kWarp];
  if (warp.arrived > 0 && warp.meeting != meeting) fail(kLanesDiverged);
  warp.meeting = meeting;
  const unsigned parity = warp.parity;
  warp.exchanged[parity][thread % kWarp] = bits;
  if (++warp.arrived < kWarp) {
    leave(State::waiting);
  } else {
    warp.arrived = 0;
    warp.parity ^= 1;
    for (unsigned lane = 0; lane < kWarp; ++lane) block->fibres[thread / kWarp * kWarp + lane].state = State::ready;
    leave(State::ready);
  }
  return warp.exchanged[parity];
}

int meet_block(bool predicate) {
  block->predicates += predicate;
  if (++block->at_barrier < block->fibres.size()) {
    leave(State::waiting);
  } else {
    block->result = block->predicates;
    block->at_barrier = block->predicates = 0;
    for (Fibre& fibre : block->fibres) fibre.state = State::ready;
    block->barrier_fell = true;
    leave(State::ready);
  }
  return block->result;
}

void wait_for_previous_kernel() {
  withheld.clear();
  block->running->waited_for_previous = true;
}

unsigned add_atomically(unsigned* counter, unsigned value) {
  const unsigned before = *counter;
  *counter += value;
  return before;
}

unsigned rank_in_cluster() { return block->rank; }

unsigned blocks_of_cluster() { return block->cluster == nullptr ? 1 : block->cluster->blocks(); }

void arrive_at_cluster_barrier() { block->running->arrived_at_cluster_barrier = true; }

void wait_at_cluster_barrier() {
  if (!block->running->arrived_at_cluster_barrier) fail(kNotArrived);
  block->running->arrived_at_cluster_barrier = false;
  if (++block->at_cluster_barrier < block->fibres.size()) {
    leave(State::waiting);
    return;
  }
  block->at_cluster_barrier = 0;
  if (block->cluster != nullptr && !meet_the_other_blocks()) fail(kNotReached);
  for (Fibre& fibre : block->fibres) fibre.state = State::ready;
  block->barrier_fell = true;
  leave(State::ready);
}

void* shared_memory_of(const void* mine, unsigned rank) {
  char* const address = static_cast<char*>(const_cast<void*>(mine));
  if (block->cluster == nullptr) return address;
  char* const place = block->cluster->places[rank];
  if (place == nullptr) fail(kNotStarted);
  return address - &place_in_shared_memory + place;
}

const char* run_grid(dim3 grid, dim3 block_size, bool linked, bool cluster, const std::function<void()>& kernel) {
  const unsigned threads = std::min(block_size.x, settings.most_threads);
  if (linked) withheld.take();
  if (cluster) return run_cluster(threads, dim3(std::min(grid.x, settings.most_blocks)), linked, kernel);
  return for_each_block(grid, block_size, [&](unsigned index, unsigned, dim3 size) {
    Block alone;
    block = &alone;
    run_fibres(index, threads, size, linked, kernel);
    return alone.error;
  });
}

}  // namespace cuda_on_host
