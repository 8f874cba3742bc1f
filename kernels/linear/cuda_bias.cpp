#include "kernels/linear/cuda_bias.h"

#include "backend/cuda/cuda_stream.h"
#include "kernels/device/types.h"

namespace weir {
namespace {

int64_t Workspace(const Node& node) {
  const int64_t m = NumElements(ToDims(node.out(0)->shape));
  if (m == 0) return 0;
  return cuda::BiasGradientPartial(NumElements(ToDims(node.in(0)->shape)) / m, m) *
         static_cast<int64_t>(sizeof(float));
}

void LaunchBiasGradient(KernelContext& c) {
  const Tensor &dy = c.inputs[0], &db = c.outputs[0];
  const int64_t m = db.elements();
  cuda::BiasGradient(dy.dtype, dy.bytes, m == 0 ? 0 : dy.elements() / m, m, c.has(1),
                     reinterpret_cast<float*>(c.workspace.data()), db.data<float>(),
                     CudaQueue(c).stream);
}

}  // namespace

WEIR_CUDA_KERNEL(BiasGradient, .launch = LaunchBiasGradient, .workspace_bytes = Workspace,
                 .unsupported = RefuseAllButActivations)

}  // namespace weir
