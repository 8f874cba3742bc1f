#include "kernels/common/reference_kernel.h"

namespace weir {
WEIR_REFERENCE_CPU_KERNEL(ReduceSum)
WEIR_REFERENCE_CPU_KERNEL(ReduceMean)
WEIR_REFERENCE_CPU_KERNEL(ReduceMax)
WEIR_REFERENCE_CPU_KERNEL(ReduceMin)
WEIR_REFERENCE_CPU_KERNEL(ReduceProd)
WEIR_REFERENCE_CPU_KERNEL(ReduceL2)
WEIR_REFERENCE_CPU_KERNEL(ReduceSumSquare)
WEIR_REFERENCE_CPU_KERNEL(ReduceLogSumExp)
}  // namespace weir
