#include "kernels/cast/cuda.h"

#include "backend/cuda/cuda_stream.h"
#include "kernels/common/copy_kernel.h"
#include "kernels/device/copy.h"
#include "kernels/device/types.h"

namespace weir {
namespace {

void LaunchCast(KernelContext& c) {
  const Tensor &x = c.inputs[0], &y = c.outputs[0];
  if (x.dtype == y.dtype) return LaunchDeviceCopy(c);
  cuda::Cast(x.dtype, y.dtype, x.bytes, y.elements(), y.bytes, CudaQueue(c).stream);
}

}  // namespace

WEIR_CUDA_KERNEL(Cast, .launch = LaunchCast, .unsupported = RefusePacked)
WEIR_CUDA_KERNEL(CastLike, .launch = LaunchCast, .unsupported = RefusePacked)

}  // namespace weir
