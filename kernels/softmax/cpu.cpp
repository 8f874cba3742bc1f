#include "kernels/common/reference_kernel.h"

namespace weir {
WEIR_REFERENCE_CPU_KERNEL(Softmax)
WEIR_REFERENCE_CPU_KERNEL(LogSoftmax)
WEIR_REFERENCE_CPU_KERNEL(SoftmaxGradient)
}  // namespace weir
