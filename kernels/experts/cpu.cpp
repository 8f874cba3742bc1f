#include "kernels/common/reference_kernel.h"

namespace weir {
WEIR_REFERENCE_CPU_KERNEL(Experts)
WEIR_REFERENCE_CPU_KERNEL(ExpertsGradient)
}  // namespace weir
