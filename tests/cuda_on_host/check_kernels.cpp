// A small case for every kernel of csrc/cuda, compared with the CPU's kernels; no torch. Two programs are made of it:
// on the host, with real threads, for ThreadSanitizer and AddressSanitizer; with nvcc, for compute-sanitizer.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <type_traits>
#include <vector>

#include "cpu/instruction_sets.h"
#include "joint_loss.h"
#include "joint_loss_math.h"

using namespace jocor_fast;

namespace {

int failures = 0;

void expect(bool holds, const char* what, const char* where) {
  if (holds) return;
  std::printf("FAILED %s: %s\n", where, what);
  ++failures;
}

void expect_launched(const char* error, const char* where) {
  expect(error == nullptr, error, where);
  const cudaError_t after = cudaDeviceSynchronize();
  expect(after == cudaSuccess, cudaGetErrorString(after), where);
}

// Memory of exactly this many elements on the device, and its copy on the host.
template <class T>
struct Array {
  std::vector<T> host;
  T* device = nullptr;

  explicit Array(size_t size) : host(size) {
    if (const cudaError_t error = cudaMalloc(&device, size * sizeof(T)); error != cudaSuccess) {
      std::fprintf(stderr, "no memory on the device: %s\n", cudaGetErrorString(error));
      std::exit(1);
    }
  }
  ~Array() { cudaFree(device); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  T* at(bool on_device) { return on_device ? device : host.data(); }
  void to_device() { cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice); }
  std::vector<T> from_device() const {
    std::vector<T> values(host.size());
    cudaMemcpy(values.data(), device, values.size() * sizeof(T), cudaMemcpyDeviceToHost);
    return values;
  }
};

float widen(float value) { return value; }
double widen(double value) { return value; }
float widen(__half value) { return __half2float(value); }
float widen(__nv_bfloat16 value) { return __bfloat162float(value); }
void narrow(double value, float& logit) { logit = static_cast<float>(value); }
void narrow(double value, double& logit) { logit = value; }
void narrow(double value, __half& logit) { logit = __float2half_rn(static_cast<float>(value)); }
void narrow(double value, __nv_bfloat16& logit) { logit = __float2bfloat16_rn(static_cast<float>(value)); }

template <class Logit>
constexpr LogitType type_of = std::is_same_v<Logit, float>    ? LogitType::float32
                              : std::is_same_v<Logit, double> ? LogitType::float64
                              : std::is_same_v<Logit, __half> ? LogitType::float16
                                                              : LogitType::bfloat16;
template <class Logit>
using RealOf = std::conditional_t<std::is_same_v<Logit, double>, double, float>;

template <class T>
void expect_close(const std::vector<T>& actual, const std::vector<T>& expected, double relative, const char* what,
                  const char* where) {
  for (size_t i = 0; i < actual.size(); ++i) {
    const double a = widen(actual[i]), e = widen(expected[i]);
    if (std::isnan(a) && std::isnan(e)) continue;
    if (!(std::abs(a - e) <= relative * std::max(1.0, std::abs(e)))) {
      std::printf("%s[%zu] is %.9g on the device and %.9g on the CPU\n", what, i, a, e);
      expect(false, what, where);
      return;
    }
  }
}

// A batch; rows are `stride` logits apart and begin `offset` logits into their memory, which ends with the last row.
template <class Logit>
struct Batch {
  using Real = RealOf<Logit>;
  int64_t rows, classes, stride, offset;
  Array<Logit> logits1, logits2;
  Array<int32_t> labels;
  Array<Real> per_sample, upstream;
  Array<RowStatistics<Real>> statistics;
  Array<uint8_t> selected;
  Array<int64_t> counts;  // selected, non-finite
  Array<Real> mean;
  Array<Logit> grad1, grad2;

  Batch(int64_t rows, int64_t classes, int64_t stride, int64_t offset)
      : rows(rows),
        classes(classes),
        stride(stride),
        offset(offset),
        logits1(offset + (rows - 1) * stride + classes),
        logits2(logits1.host.size()),
        labels(rows),
        per_sample(rows),
        upstream(1),
        statistics(rows),
        selected(rows),
        counts(2),
        mean(1),
        grad1(rows * classes),
        grad2(rows * classes) {
    std::mt19937 random(static_cast<unsigned>(rows * 1000 + classes));
    std::normal_distribution<double> normal(0, 2);
    for (size_t i = 0; i < logits1.host.size(); ++i) {
      narrow(normal(random), logits1.host[i]);
      narrow(normal(random), logits2.host[i]);
    }
    for (int64_t i = 0; i < rows; ++i) labels.host[i] = static_cast<int32_t>(random() % classes);
    labels.host[0] = -5;  // ignored
    if (rows > 3) narrow(NAN, logits1.host[offset + 2 * stride]);
    upstream.host[0] = Real(0.5);
    logits1.to_device();
    logits2.to_device();
    labels.to_device();
    upstream.to_device();
  }

  LogitPair pair(bool on_device) {
    LogitPair pair{};
    pair.type = type_of<Logit>;
    pair.logits1 = logits1.at(on_device) + offset;
    pair.logits2 = logits2.at(on_device) + offset;
    pair.row_stride1 = pair.row_stride2 = stride;
    pair.rows = rows;
    pair.classes = classes;
    pair.label_type = LabelType::int32;
    pair.labels = labels.at(on_device);
    pair.label_stride = 1;
    pair.has_ignore_index = true;
    pair.ignore_index = -5;
    pair.co_lambda = 0.9;
    return pair;
  }

  RowParams row_params(bool on_device) {
    RowParams params{};
    params.pair = pair(on_device);
    params.per_sample = per_sample.at(on_device);
    params.statistics = statistics.at(on_device);
    params.row_state = selected.at(on_device);
    params.compare_predictions = true;
    return params;
  }

  SelectionParams selection_params(bool on_device) {
    SelectionParams params{};
    params.is_double = sizeof(Real) == 8;
    params.rows = rows;
    params.losses = params.mean_of = per_sample.at(on_device);
    params.row_state = params.selected = selected.at(on_device);
    params.disagreement = Disagreement::preferred;
    params.num_keep = -1;
    params.forget_rate = 0.4;
    params.num_selected = counts.at(on_device);
    params.num_nonfinite = counts.at(on_device) + 1;
    params.mean = mean.at(on_device);
    return params;
  }

  GradientParams gradient_params(bool on_device) {
    GradientParams params{};
    params.pair = pair(on_device);
    params.statistics = statistics.at(on_device);
    params.grad_output = upstream.at(on_device);
    params.selected1 = params.selected2 = selected.at(on_device);
    params.num_selected1 = params.num_selected2 = counts.at(on_device);
    params.grad1 = grad1.at(on_device);
    params.grad2 = grad2.at(on_device);
    return params;
  }

  // A robust loss of network 1, which takes the same results' memory.
  RobustRowParams robust_params(bool on_device) {
    const LogitPair of_pair = pair(on_device);
    RobustRowParams params{};
    static_cast<LabelledRows&>(params.logits) = of_pair;
    params.logits.type = of_pair.type;
    params.logits.logits = of_pair.logits1;
    params.logits.row_stride = of_pair.row_stride1;
    params.settings = {rows % 2 == 0 ? RobustKind::nce_rce : RobustKind::cores, 1.0, 2.0};
    params.per_sample = per_sample.at(on_device);
    params.statistics = statistics.at(on_device);
    params.row_state = selected.at(on_device);
    params.sieve = true;
    return params;
  }

  SelectionParams robust_selection_params(bool on_device) {
    SelectionParams params = selection_params(on_device);
    params.disagreement = Disagreement::required;
    params.num_keep = INT64_MAX;
    return params;
  }

  RobustGradientParams robust_gradient_params(bool on_device) {
    RobustGradientParams params{};
    params.logits = robust_params(on_device).logits;
    params.statistics = statistics.at(on_device);
    params.grad_output = upstream.at(on_device);
    params.selected = selected.at(on_device);
    params.num_selected = counts.at(on_device);
    params.grad = grad1.at(on_device);
    return params;
  }
};
static_assert(sizeof(RobustStatistics<double>) == sizeof(RowStatistics<double>));

template <class Logit>
void check_batch(int64_t rows, int64_t classes, int64_t stride, int64_t offset, bool together) {
  using Real = RealOf<Logit>;
  char where[120];
  std::snprintf(where, sizeof(where), "%d-byte %s logits, %lld x %lld, stride %lld, offset %lld, %s",
                int(sizeof(Logit)), type_of<Logit> == LogitType::bfloat16 ? "bfloat" : "IEEE", (long long)rows,
                (long long)classes, (long long)stride, (long long)offset,
                together ? "rows and selection" : "rows, then selection");
  std::printf("%s\n", where);
  Batch<Logit> batch(rows, classes, stride, offset);

  cpu::portable_kernels.row_losses(batch.row_params(false), 0, rows);
  cpu::select_small_loss(batch.selection_params(false));
  cpu::portable_kernels.row_gradients(batch.gradient_params(false), 0, rows);

  if (together) {
    expect_launched(cuda::row_losses_and_selection(batch.row_params(true), batch.selection_params(true), nullptr),
                    where);
  } else {
    expect_launched(cuda::row_losses(batch.row_params(true), nullptr), where);
    expect_launched(cuda::select_small_loss(batch.selection_params(true), nullptr), where);
  }
  expect_launched(cuda::row_gradients(batch.gradient_params(true), nullptr), where);

  const double close = sizeof(Real) == 8 ? 1e-12 : 2e-6;
  const double of_gradient = sizeof(Logit) == 2 ? (type_of<Logit> == LogitType::bfloat16 ? 0x1p-7 : 0x1p-10) : close;
  expect_close(batch.per_sample.from_device(), batch.per_sample.host, close, "per_sample", where);
  expect(batch.selected.from_device() == batch.selected.host, "the selection differs from the CPU's", where);
  expect(batch.counts.from_device() == batch.counts.host, "the counts differ from the CPU's", where);
  expect_close(batch.mean.from_device(), batch.mean.host, close, "mean", where);
  expect_close(batch.grad1.from_device(), batch.grad1.host, of_gradient, "grad1", where);
  expect_close(batch.grad2.from_device(), batch.grad2.host, of_gradient, "grad2", where);

  cpu::portable_kernels.robust_losses(batch.robust_params(false), 0, rows);
  cpu::select_small_loss(batch.robust_selection_params(false));
  cpu::portable_kernels.robust_gradients(batch.robust_gradient_params(false), 0, rows);
  if (together) {
    expect_launched(
        cuda::robust_losses_and_selection(batch.robust_params(true), batch.robust_selection_params(true), nullptr),
        where);
  } else {
    expect_launched(cuda::robust_losses(batch.robust_params(true), nullptr), where);
    expect_launched(cuda::select_small_loss(batch.robust_selection_params(true), nullptr), where);
  }
  expect_launched(cuda::robust_gradients(batch.robust_gradient_params(true), nullptr), where);
  // beta 2 makes it a difference, or a sum by the factor 18, of terms that are larger than it, and so are its errors.
  const double of_terms = 20 * close;
  expect_close(batch.per_sample.from_device(), batch.per_sample.host, of_terms, "robust per_sample", where);
  expect(batch.selected.from_device() == batch.selected.host, "the sieve differs from the CPU's", where);
  expect(batch.counts.from_device() == batch.counts.host, "the sieve's counts differ from the CPU's", where);
  expect_close(batch.mean.from_device(), batch.mean.host, of_terms, "robust mean", where);
  expect_close(batch.grad1.from_device(), batch.grad1.host, std::max(of_terms, of_gradient), "robust gradient", where);
}

// Losses that repeat: ties are taken in order.
template <class Real>
void check_selection_alone(int64_t rows) {
  char where[80];
  std::snprintf(where, sizeof(where), "selection of %lld float%d losses", (long long)rows, int(8 * sizeof(Real)));
  std::printf("%s\n", where);
  Array<Real> losses(rows);
  Array<uint8_t> selected(rows);
  Array<int64_t> counts(2);
  for (int64_t i = 0; i < rows; ++i) losses.host[i] = static_cast<Real>(i * 7919 % 5);
  losses.to_device();
  const auto params = [&](bool on_device) {
    SelectionParams params{};
    params.is_double = sizeof(Real) == 8;
    params.rows = rows;
    params.losses = losses.at(on_device);
    params.num_keep = rows / 2;
    params.selected = selected.at(on_device);
    params.num_selected = counts.at(on_device);
    params.num_nonfinite = counts.at(on_device) + 1;
    return params;
  };
  cpu::select_small_loss(params(false));
  expect_launched(cuda::select_small_loss(params(true), nullptr), where);
  expect(selected.from_device() == selected.host, "the selection differs from the CPU's", where);
  expect(counts.from_device() == counts.host, "the counts differ from the CPU's", where);
}

// More keys than the registers of one block hold, or of eight; above 8,192 rows a cluster of eight selects, where the
// device has clusters.
constexpr int64_t kRowsOfLoops = 8192 + 8;

// Every line of the mapping table and the looping kernel, at each vector width.
template <class Logit>
void check_type() {
  constexpr int64_t widest = 16 / sizeof(Logit);
  for (const int64_t classes : {10, 20, 100, 300, 1100}) {
    const int64_t stride = (classes + widest - 1) / widest * widest;
    check_batch<Logit>(5, classes, stride, 0, false);
    if (sizeof(Logit) == 2) check_batch<Logit>(5, classes, stride, 2, false);
    check_batch<Logit>(5, classes, stride, 1, false);
  }
  check_batch<Logit>(70, 10, 10, 0, true);   // one launch
  check_batch<Logit>(3, 100, 104, 0, true);  // one launch, a warp a row
  check_batch<Logit>(520, 3, 3, 1, true);    // two, selection by radix
}

}  // namespace

// Without arguments everything is checked, else what is named.
int main(int argc, char** argv) {
  const auto wanted = [&](const char* type) {
    bool named = argc == 1;
    for (int i = 1; i < argc; ++i) named = named || std::strcmp(argv[i], type) == 0;
    return named;
  };
  if (wanted("float32")) check_type<float>();
  if (wanted("bfloat16")) check_type<__nv_bfloat16>();
  if (wanted("float16")) check_type<__half>();
  if (wanted("float64")) check_type<double>();
  if (wanted("float32 losses")) {
    for (const int64_t rows : {int64_t{200}, int64_t{4096}, kRowsOfLoops}) check_selection_alone<float>(rows);
  }
  if (wanted("float64 losses")) check_selection_alone<double>(kRowsOfLoops);
  if (wanted("many float32 losses")) check_selection_alone<float>(8 * kRowsOfLoops);
  if (wanted("many float64 losses")) check_selection_alone<double>(8 * kRowsOfLoops);
  std::printf(failures == 0 ? "every kernel agrees with the CPU's\n" : "%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
