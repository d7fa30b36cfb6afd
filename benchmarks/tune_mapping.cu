// Times the row kernels with every candidate of the mapping table, and the three choices that row_mapping.h makes by
// size. No torch. tune_mapping.py compiles this for one logit type (JF_LOGIT) against a copy of csrc/ whose
// kRowMappings are the candidates, runs it, and reads what it prints: lines of fields parted by commas.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "cuda/radix_selection.cuh"
#include "cuda/row_gradients.cuh"
#include "cuda/row_launches.cuh"
#include "cuda/row_losses.cuh"
#include "cuda/rows_and_selection.cuh"
#include "joint_loss.h"

using namespace jocor_fast;
using namespace jocor_fast::cuda;

namespace {

using Logit = JF_LOGIT;
constexpr int kWidest = 16 / sizeof(Logit);
constexpr int kRounds = 9;                   // of which the median is printed
constexpr int kRepeats = 20;                 // launches between two looks at the clock
constexpr long long kDelayCycles = 1000000;  // half a millisecond at least, for over a hundred launches

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

template <class T>
T* allocate(size_t count) {
  T* memory = nullptr;
  check(cudaMalloc(&memory, count * sizeof(T)), "memory");
  return memory;
}

__global__ void fill_logits(Logit* logits, int64_t count, unsigned seed) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const unsigned mixed = (static_cast<unsigned>(i) ^ seed) * 2654435761u;
    from_real(static_cast<float>((mixed ^ (mixed >> 15)) % 8192) / 1024.0f - 4.0f, logits[i]);
  }
}

__global__ void fill_labels(int64_t* labels, uint8_t* selected, int64_t rows, int64_t classes) {
  for (int64_t i = threadIdx.x; i < rows; i += blockDim.x) {
    labels[i] = i * 7919 % classes;
    selected[i] = i % 2;
  }
}

struct Batch {
  int64_t rows, classes, stride;
  Logit *logits1, *logits2, *grad1, *grad2;
  int64_t *labels, *counts;
  float *per_sample, *statistics, *upstream, *mean;
  uint8_t* selected;

  // Rows begin at multiples of 16 bytes: every candidate may use the widest loads.
  Batch(int64_t rows, int64_t classes)
      : rows(rows),
        classes(classes),
        stride((classes + kWidest - 1) / kWidest * kWidest),
        logits1(allocate<Logit>(rows * stride)),
        logits2(allocate<Logit>(rows * stride)),
        grad1(allocate<Logit>(rows * stride)),
        grad2(allocate<Logit>(rows * stride)),
        labels(allocate<int64_t>(rows)),
        counts(allocate<int64_t>(2)),
        per_sample(allocate<float>(rows)),
        statistics(allocate<float>(4 * rows)),
        upstream(allocate<float>(1)),
        mean(allocate<float>(1)),
        selected(allocate<uint8_t>(rows)) {
    fill_logits<<<1024, 256>>>(logits1, rows * stride, 1);
    fill_logits<<<1024, 256>>>(logits2, rows * stride, 2);
    fill_labels<<<1, 1024>>>(labels, selected, rows, classes);
    check(cudaMemset(upstream, 0, sizeof(float)), "upstream");
    const int64_t kept = rows / 2 > 0 ? rows / 2 : 1;
    check(cudaMemcpy(counts, &kept, sizeof(kept), cudaMemcpyHostToDevice), "counts");
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch() {
    for (void* memory : std::vector<void*>{logits1, logits2, grad1, grad2, labels, counts, per_sample, statistics,
                                           upstream, mean, selected}) {
      cudaFree(memory);
    }
  }

  LogitPair pair() const {
    LogitPair pair{};
    pair.type = sizeof(Logit) == 4 ? LogitType::float32 : LogitType::bfloat16;
    pair.logits1 = logits1;
    pair.logits2 = logits2;
    pair.row_stride1 = pair.row_stride2 = stride;
    pair.rows = rows;
    pair.classes = classes;
    pair.label_type = LabelType::int64;
    pair.labels = labels;
    pair.label_stride = 1;
    pair.co_lambda = 0.9;
    return pair;
  }

  RowParams row_params() const {
    RowParams params{};
    params.pair = pair();
    params.per_sample = per_sample;
    params.statistics = statistics;
    return params;
  }

  SelectionParams selection_params() const {
    SelectionParams params{};
    params.rows = rows;
    params.losses = params.mean_of = per_sample;
    params.num_keep = rows / 2;
    params.selected = selected;
    params.num_selected = counts;
    params.num_nonfinite = counts + 1;
    params.mean = mean;
    return params;
  }

  GradientParams gradient_params() const {
    GradientParams params{};
    params.pair = pair();
    params.statistics = statistics;
    params.grad_output = upstream;
    params.selected1 = params.selected2 = selected;
    params.num_selected1 = params.num_selected2 = counts;
    params.grad1 = grad1;
    params.grad2 = grad2;
    return params;
  }
};

__global__ void delay() {
  for (const long long start = clock64(); clock64() - start < kDelayCycles;) {
  }
}

// Median µs of one launch (or whatever `enqueue` enqueues). The GPU is kept busy until all are enqueued: one that waits
// for its host shows the host's time, some microseconds a launch.
template <class Enqueue>
double microseconds(Enqueue enqueue) {
  cudaEvent_t start, end;
  cudaEventCreate(&start);
  cudaEventCreate(&end);
  std::vector<float> times;
  check(enqueue(), "launch");
  for (int round = 0; round < kRounds; ++round) {
    delay<<<1, 1>>>();
    cudaEventRecord(start);
    for (int i = 0; i < kRepeats; ++i) check(enqueue(), "launch");
    cudaEventRecord(end);
    check(cudaEventSynchronize(end), "kernel");
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, start, end);
    times.push_back(milliseconds);
  }
  cudaEventDestroy(start);
  cudaEventDestroy(end);
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  return times[kRounds / 2] * 1e3 / kRepeats;
}

void print_row(const char* step, const Batch& batch, int lanes, int columns, int threads, double time) {
  std::printf("mapping,%s,%lld,%lld,%d,%d,%d,%.3f\n", step, static_cast<long long>(batch.classes),
              static_cast<long long>(batch.rows), lanes, columns, threads, time);
  std::fflush(stdout);
}

// Every candidate that holds the row; `lanes` 0 stands for the block that loops over it.
template <int... index>
void time_mappings(const Batch& batch, std::integer_sequence<int, index...>) {
  const auto time_one = [&]<int i>() {
    constexpr RowMapping line = kRowMappings[i];
    if constexpr (is_mapping_of<Logit>(line)) {
      if (line.lanes * line.columns < batch.classes) return;
      const int64_t blocks = divide_up(batch.rows, line.threads / line.lanes);
      print_row("rows", batch, line.lanes, line.columns, line.threads, microseconds([&] {
                  return launch(row_losses_in_registers<Logit, i, kWidest>, {blocks, line.threads}, nullptr,
                                After::everything, batch.row_params());
                }));
      // only a gradient whose rows have no gap may be written in whole vectors
      if (batch.classes % kWidest != 0) return;
      print_row("gradient", batch, line.lanes, line.columns, line.threads, microseconds([&] {
                  return launch(row_gradients_in_registers<Logit, i, kWidest>, {blocks, line.threads}, nullptr,
                                After::everything, batch.gradient_params());
                }));
    }
  };
  (time_one.template operator()<index>(), ...);
  print_row("rows", batch, 0, 0, kBlockRowThreads, microseconds([&] {
              return launch(row_losses_by_block<Logit, kWidest>, {batch.rows, kBlockRowThreads}, nullptr,
                            After::everything, batch.row_params());
            }));
}

// A batch whose losses are computed.
struct Ranked : Batch {
  explicit Ranked(int64_t rows) : Batch(rows, kWidest) {
    check(
        launch(row_losses_by_block<Logit, kWidest>, {rows, kBlockRowThreads}, nullptr, After::everything, row_params()),
        "rows");
  }
};

template <class Kernel>
double time_one_block(const Ranked& batch, Kernel kernel, int threads) {
  return microseconds(
      [&] { return launch(kernel, {1, threads}, nullptr, After::everything, batch.selection_params()); });
}

// By counting against by radix.
void time_selections() {
  for (const int64_t rows : {64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048}) {
    const Ranked batch(rows);
    std::printf("selection,%lld,%.3f,%.3f\n", static_cast<long long>(rows),
                time_one_block(batch, selection_by_counting<float>, threads_of_counting(rows)),
                time_one_block(batch, selection_by_radix<float>, threads_of_radix(rows, 1)));
  }
}

// By radix in one block against a cluster.
void time_clusters() {
  const auto kernel = selection_by_radix<float>;
  if (!runs_as_cluster(kernel, kClusterBlocks, kRadixThreads)) return;
  for (const int64_t rows : {2048, 4096, 6144, 8192, 9216, 10240, 12288, 16384, 24576, 32768, 65536, 131072}) {
    const Ranked batch(rows);
    const double cluster = microseconds([&] {
      return launch(kernel, {kClusterBlocks, threads_of_radix(rows, kClusterBlocks), /*one_cluster=*/true}, nullptr,
                    After::everything, batch.selection_params());
    });
    std::printf("cluster,%lld,%.3f,%.3f\n", static_cast<long long>(rows),
                time_one_block(batch, kernel, threads_of_radix(rows, 1)), cluster);
  }
}

// Rows and selection in one block against two linked launches, by the rounds that the block takes over the batch.
template <int mapping>
void time_single_block(int64_t classes) {
  constexpr RowMapping line = kRowMappings[mapping];
  const int64_t rows_per_round = kSingleBlockThreads<float> / line.lanes;
  for (int64_t rounds = 1; rounds <= 16 && rounds * rows_per_round <= 512; ++rounds) {
    Batch batch(rounds * rows_per_round, classes);
    const double one = microseconds([&] {
      return launch(rows_and_selection_by_block<Logit, mapping, kWidest>, {1, kSingleBlockThreads<float>}, nullptr,
                    After::everything, batch.row_params(), batch.selection_params());
    });
    const int64_t blocks = divide_up(batch.rows, line.threads / line.lanes);
    const double two = microseconds([&] {
      const cudaError_t error = launch(row_losses_in_registers<Logit, mapping, kWidest>, {blocks, line.threads},
                                       nullptr, After::everything, batch.row_params());
      if (error != cudaSuccess) return error;
      return launch(selection_by_counting<float>, {1, threads_of_counting(batch.rows)}, nullptr, After::linked,
                    batch.selection_params());
    });
    std::printf("rounds,%lld,%lld,%.3f,%.3f\n", static_cast<long long>(classes), static_cast<long long>(rounds), one,
                two);
  }
}

}  // namespace

int main() {
  time_clusters();  // first: the limit whose estimate leaves most out (row_mapping.h)
  for (const int64_t classes : {16, 32, 64, 104, 256, 512, 1000, 1024}) {
    for (const int64_t rows : {128, 4096, 65536}) {
      time_mappings(Batch(rows, classes), std::make_integer_sequence<int, kMappings>{});
    }
  }
  time_selections();
  time_single_block<JF_SHORT_ROWS>(32);  // the candidates that the table holds today
  time_single_block<JF_WARP_ROWS>(104);
  return 0;
}
