// The steps of joint_loss.h on the CPU, by the row kernels of this processor's instruction set.
// JOCOR_FAST_CPU_ISA=portable|avx2|avx512 asks for a lesser one, to test all of them on one machine.
#include <cstdlib>
#include <cstring>

#include "instruction_sets.h"
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace jocor_fast::cpu {
namespace {

const RowKernels& choose() {
#if defined(__x86_64__)
  const char* asked = std::getenv("JOCOR_FAST_CPU_ISA");
  const bool up_to_portable = asked != nullptr && std::strcmp(asked, "portable") == 0;
  const bool up_to_avx2 = up_to_portable || (asked != nullptr && std::strcmp(asked, "avx2") == 0);
  __builtin_cpu_init();
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  unsigned eax, ebx, ecx, edx;  // __builtin_cpu_supports of clang 16 does not know f16c
  const bool has_f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c;
  if (has_avx512 && !up_to_avx2) return avx512_kernels;
  if (has_avx2 && !up_to_portable) return avx2_kernels;
#endif
  return portable_kernels;
}

const RowKernels& chosen() {
  static const RowKernels& kernels = choose();
  return kernels;
}

}  // namespace

int64_t row_losses(const RowParams& params, int64_t begin, int64_t end) {
  return chosen().row_losses(params, begin, end);
}

void row_gradients(const GradientParams& params, int64_t begin, int64_t end) {
  chosen().row_gradients(params, begin, end);
}

int64_t corrected_losses(const CorrectedRowParams& params, int64_t begin, int64_t end) {
  return chosen().corrected_losses(params, begin, end);
}

void corrected_gradients(const CorrectedGradientParams& params, int64_t begin, int64_t end) {
  chosen().corrected_gradients(params, begin, end);
}

int64_t robust_losses(const RobustRowParams& params, int64_t begin, int64_t end) {
  return chosen().robust_losses(params, begin, end);
}

void robust_gradients(const RobustGradientParams& params, int64_t begin, int64_t end) {
  chosen().robust_gradients(params, begin, end);
}

void sparse_linear(const SparseLinearParams& params, const Share& share) { chosen().sparse_linear(params, share); }

void sparse_gradients(const SparseGradientParams& params, const Share& share) {
  chosen().sparse_gradients(params, share);
}

void sparse_adam_catch_up(const SparseAdamParams& params, const int32_t* rows, const Share& share) {
  chosen().sparse_adam_catch_up(params, rows, share);
}

void sparse_adam_step(const SparseAdamParams& params, const SparseGradientParams& gradient, const int32_t* columns,
                      const Share& share) {
  chosen().sparse_adam_step(params, gradient, columns, share);
}

const char* instruction_set() { return chosen().name; }

std::vector<const char*> instruction_sets() {
#if defined(__x86_64__)
  return {avx512_kernels.name, avx2_kernels.name, portable_kernels.name};
#else
  return {portable_kernels.name};
#endif
}

}  // namespace jocor_fast::cpu
