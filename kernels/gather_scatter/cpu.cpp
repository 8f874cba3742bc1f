#include "kernels/common/reference_kernel.h"

namespace weir {

WEIR_REFERENCE_CPU_KERNEL(Gather)
WEIR_REFERENCE_CPU_KERNEL(GatherElements)
WEIR_REFERENCE_CPU_KERNEL(GatherND)
WEIR_REFERENCE_CPU_KERNEL(GatherGradient)
WEIR_REFERENCE_CPU_KERNEL(GatherElementsGradient)
WEIR_REFERENCE_CPU_KERNEL(GatherNDGradient)
WEIR_REFERENCE_CPU_KERNEL(ScatterElements)
WEIR_REFERENCE_CPU_KERNEL(ScatterND)

}  // namespace weir
