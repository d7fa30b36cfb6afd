// The row kernels, 16 bytes wide, for any processor with such vectors (SSE2, NEON).
#define JF_ISA portable
#define JF_VECTOR_BYTES 16
#include "forward_correction.h"
#include "instruction_sets.h"
#include "robust_loss.h"
#include "row_gradients.h"
#include "row_losses.h"
#include "sparse_linear.h"

namespace jocor_fast::cpu {
const RowKernels portable_kernels = {"portable",
                                     portable::row_losses,
                                     portable::row_gradients,
                                     portable::corrected_losses,
                                     portable::corrected_gradients,
                                     portable::robust_losses,
                                     portable::robust_gradients,
                                     portable::sparse_linear,
                                     portable::sparse_gradients,
                                     portable::sparse_adam_catch_up,
                                     portable::sparse_adam_step};
}
