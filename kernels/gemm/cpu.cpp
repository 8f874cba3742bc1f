#include "kernels/common/reference_kernel.h"

namespace weir {

WEIR_REFERENCE_CPU_KERNEL(Gemm)

}  // namespace weir
