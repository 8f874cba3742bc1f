#include "kernels/softmax/cuda.h"

#include "backend/cuda/cuda_stream.h"
#include "kernels/common/axis_view.h"
#include "kernels/device/types.h"

namespace weir {
namespace {

cuda::SoftmaxShape ShapeOf(const KernelContext& c, bool log) {
  const AxisView view = ViewAxis(c.outputs[0].dims, c.attributes().Int("axis", -1));
  return {.rows = view.outer * view.inner, .size = view.size, .inner = view.inner, .log = log};
}

template <bool log>
void LaunchSoftmax(KernelContext& c) {
  cuda::Softmax(c.inputs[0].dtype, ShapeOf(c, log), c.inputs[0].bytes, c.outputs[0].bytes,
                CudaQueue(c).stream);
}

void LaunchSoftmaxGradient(KernelContext& c) {
  cuda::SoftmaxGradient(c.inputs[0].dtype, ShapeOf(c, c.attributes().Int("log", 0) != 0), c.inputs[0].bytes,
                        c.inputs[1].bytes, c.outputs[0].bytes, CudaQueue(c).stream);
}

}  // namespace

WEIR_CUDA_KERNEL(Softmax, .launch = LaunchSoftmax<false>, .unsupported = RefuseAllButActivations)
WEIR_CUDA_KERNEL(LogSoftmax, .launch = LaunchSoftmax<true>, .unsupported = RefuseAllButActivations)
WEIR_CUDA_KERNEL(SoftmaxGradient, .launch = LaunchSoftmaxGradient, .unsupported = RefuseAllButActivations)

}  // namespace weir
