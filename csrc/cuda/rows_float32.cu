#include "row_launches.cuh"

namespace jocor_fast::cuda {
JF_COMPILE_ROW_KERNELS(float);
}
