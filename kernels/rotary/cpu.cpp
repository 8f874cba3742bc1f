#include "kernels/common/reference_kernel.h"

namespace weir {

WEIR_REFERENCE_CPU_KERNEL(RotaryTable)
WEIR_REFERENCE_CPU_KERNEL(Rotary)
WEIR_REFERENCE_CPU_KERNEL(RotaryGradient)

}  // namespace weir
