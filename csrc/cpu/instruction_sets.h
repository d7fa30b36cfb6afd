// The row kernels are compiled once per instruction set; one table of them is chosen at run time.
#pragma once

#include "../joint_loss.h"
#include "../sparse_linear.h"

namespace jocor_fast::cpu {

struct RowKernels {
  const char* name;
  int64_t (*row_losses)(const RowParams&, int64_t begin, int64_t end);
  void (*row_gradients)(const GradientParams&, int64_t begin, int64_t end);
  int64_t (*corrected_losses)(const CorrectedRowParams&, int64_t begin, int64_t end);
  void (*corrected_gradients)(const CorrectedGradientParams&, int64_t begin, int64_t end);
  int64_t (*robust_losses)(const RobustRowParams&, int64_t begin, int64_t end);
  void (*robust_gradients)(const RobustGradientParams&, int64_t begin, int64_t end);
  void (*sparse_linear)(const SparseLinearParams&, const Share&);
  void (*sparse_gradients)(const SparseGradientParams&, const Share&);
  void (*sparse_adam_catch_up)(const SparseAdamParams&, const int32_t* rows, const Share&);
  void (*sparse_adam_step)(const SparseAdamParams&, const SparseGradientParams&, const int32_t* columns, const Share&);
};

extern const RowKernels portable_kernels;
#if defined(__x86_64__)
extern const RowKernels avx2_kernels;
extern const RowKernels avx512_kernels;
#endif

}  // namespace jocor_fast::cpu
