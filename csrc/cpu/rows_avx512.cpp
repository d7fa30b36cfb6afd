// The row kernels for AVX-512. The target is set here and not by a compiler flag: any build system may compile this
// file. The standard headers are included before it: none of their functions may be compiled for it, for the linker
// could choose that copy for the whole program.
#if defined(__x86_64__)
#include <immintrin.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#endif

#define JF_ISA_AVX512
#define JF_ISA avx512
#define JF_VECTOR_BYTES 64
#include "forward_correction.h"
#include "instruction_sets.h"
#include "robust_loss.h"
#include "row_gradients.h"
#include "row_losses.h"
#include "sparse_linear.h"

namespace jocor_fast::cpu {
const RowKernels avx512_kernels = {"avx512",
                                   avx512::row_losses,
                                   avx512::row_gradients,
                                   avx512::corrected_losses,
                                   avx512::corrected_gradients,
                                   avx512::robust_losses,
                                   avx512::robust_gradients,
                                   avx512::sparse_linear,
                                   avx512::sparse_gradients,
                                   avx512::sparse_adam_catch_up,
                                   avx512::sparse_adam_step};
}

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
