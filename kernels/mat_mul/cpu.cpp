#include "kernels/common/reference_kernel.h"

namespace weir {

WEIR_REFERENCE_CPU_KERNEL(MatMul)
WEIR_REFERENCE_CPU_KERNEL(MatMulGradient)

}  // namespace weir
