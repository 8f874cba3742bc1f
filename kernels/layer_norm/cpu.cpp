#include "kernels/common/reference_kernel.h"

namespace weir {
WEIR_REFERENCE_CPU_KERNEL(LayerNormalization)
WEIR_REFERENCE_CPU_KERNEL(LayerNormGradient)
WEIR_REFERENCE_CPU_KERNEL(RMSNormalization)
WEIR_REFERENCE_CPU_KERNEL(SimplifiedLayerNormalization)
}  // namespace weir
