// The steps of joint_loss.h on the device of their tensors: split over the CPU's threads, or on the current CUDA
// stream.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>

#include "arguments.h"
#include "joint_loss.h"

#ifdef JOCOR_FAST_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace jocor_fast {

// About how many float32 a thread must read or write: with fewer, a second thread on a busy core costs more than it
// saves.
constexpr int64_t kNumbersPerThread = 32768;

// Calls body(first row, row past the last) for each thread's share of `rows` rows, each of which reads or writes
// `numbers` numbers.
template <class Body>
void split_rows(int64_t rows, int64_t numbers, const Body& body) {
  at::parallel_for(0, rows, std::max<int64_t>(1, kNumbersPerThread / std::max<int64_t>(1, numbers)), body);
}

// The same for a step that returns the first row with an invalid label in its share, or kNoBadLabel; raises the error
// of the first such row of all.
template <class Body>
void split_labelled_rows(const LabelledRows& rows, const Body& body) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> first_bad{kNone};
  split_rows(rows.rows, rows.classes, [&](int64_t begin, int64_t end) {
    const int64_t bad = body(begin, end);
    if (bad == cpu::kNoBadLabel) return;
    int64_t seen = first_bad.load();
    while (bad < seen && !first_bad.compare_exchange_weak(seen, bad)) {
    }
  });
  if (const int64_t bad = first_bad.load(); bad != kNone) raise_invalid_label(rows, bad);
}

struct CpuSteps {
  void row_losses(const RowParams& params) const {
    split_labelled_rows(params.pair, [&](int64_t begin, int64_t end) { return cpu::row_losses(params, begin, end); });
  }
  void select_small_loss(const SelectionParams& params) const { cpu::select_small_loss(params); }
  void row_losses_and_selection(const RowParams& rows, const SelectionParams& selection) const {
    row_losses(rows);
    select_small_loss(selection);
  }
  void row_gradients(const GradientParams& params) const {
    split_rows(params.pair.rows, params.pair.classes,
               [&](int64_t begin, int64_t end) { cpu::row_gradients(params, begin, end); });
  }
  void robust_losses(const RobustRowParams& params) const {
    split_labelled_rows(params.logits,
                        [&](int64_t begin, int64_t end) { return cpu::robust_losses(params, begin, end); });
  }
  void robust_losses_and_selection(const RobustRowParams& rows, const SelectionParams& selection) const {
    robust_losses(rows);
    select_small_loss(selection);
  }
  void robust_gradients(const RobustGradientParams& params) const {
    split_rows(params.logits.rows, params.logits.classes,
               [&](int64_t begin, int64_t end) { cpu::robust_gradients(params, begin, end); });
  }
};

#ifdef JOCOR_FAST_CUDA
struct CudaSteps {
  void* stream;

  void row_losses(const RowParams& params) const { check(cuda::row_losses(params, stream)); }
  void select_small_loss(const SelectionParams& params) const { check(cuda::select_small_loss(params, stream)); }
  void row_losses_and_selection(const RowParams& rows, const SelectionParams& selection) const {
    check(cuda::row_losses_and_selection(rows, selection, stream));
  }
  void row_gradients(const GradientParams& params) const { check(cuda::row_gradients(params, stream)); }
  void robust_losses(const RobustRowParams& params) const { check(cuda::robust_losses(params, stream)); }
  void robust_losses_and_selection(const RobustRowParams& rows, const SelectionParams& selection) const {
    check(cuda::robust_losses_and_selection(rows, selection, stream));
  }
  void robust_gradients(const RobustGradientParams& params) const { check(cuda::robust_gradients(params, stream)); }

 private:
  static void check(const char* error) {
    TORCH_CHECK(error == nullptr, "jocor_fast: a kernel could not be launched: ", error);
  }
};
#endif

// Calls work(the steps of the tensor's device).
template <class Work>
void on_device_of(const at::Tensor& tensor, const Work& work) {
#ifdef JOCOR_FAST_CUDA
  if (tensor.is_cuda()) {
    const c10::cuda::CUDAGuard guard(tensor.device());
    return work(CudaSteps{c10::cuda::getCurrentCUDAStream().stream()});
  }
#endif
  (void)tensor;
  work(CpuSteps{});
}

}  // namespace jocor_fast
