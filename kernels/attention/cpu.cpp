#include "kernels/common/reference_kernel.h"

namespace weir {
WEIR_REFERENCE_CPU_KERNEL(Attention)
WEIR_REFERENCE_CPU_KERNEL(AttentionGradient)
}  // namespace weir
