#include "kernels/rms_norm/cuda.h"

#include "backend/cuda/cuda_stream.h"
#include "kernels/device/types.h"

namespace weir {
namespace {

int64_t RowsOf(const KernelContext& c) {
  const int64_t h = c.inputs[1].elements();
  return h == 0 ? 0 : c.inputs[0].elements() / h;
}

void LaunchRmsNorm(KernelContext& c) {
  const float epsilon = static_cast<float>(c.attributes().Float("epsilon", 1e-5));
  cuda::RmsNorm(c.inputs[0].dtype, c.inputs[0].bytes, c.inputs[1].data<float>(), RowsOf(c),
                c.inputs[1].elements(), epsilon, c.outputs[0].bytes,
                c.outputs.size() > 1 ? c.outputs[1].data<float>() : nullptr, CudaQueue(c).stream);
}

int64_t GradientWorkspace(const Node& node) {
  const int64_t h = NumElements(ToDims(node.in(1)->shape));
  if (node.outputs.size() < 2 || h == 0) return 0;
  return cuda::RmsNormPartial(NumElements(ToDims(node.in(0)->shape)) / h, h) *
         static_cast<int64_t>(sizeof(float));
}

void LaunchRmsNormGradient(KernelContext& c) {
  const Tensor &x = c.inputs[0], &gamma = c.inputs[1], &rstd = c.inputs[2], &dy = c.inputs[3];
  const int64_t rows = RowsOf(c), h = gamma.elements();
  cuda::RmsNormGradient(x.dtype, x.bytes, gamma.data<float>(), rstd.data<float>(), dy.bytes, rows, h,
                        c.outputs[0].bytes, CudaQueue(c).stream);
  if (c.outputs.size() < 2) return;
  cuda::RmsNormGammaGradient(x.dtype, x.bytes, rstd.data<float>(), dy.bytes, rows, h, c.has(4),
                             reinterpret_cast<float*>(c.workspace.data()), c.outputs[1].data<float>(),
                             CudaQueue(c).stream);
}

std::string Refuse(const Node& node) {
  if (std::string reason = RefuseType(node, 1, TypeOf(node, 1) == DType::kFloat32); !reason.empty())
    return reason;
  return RefuseAllButActivations(node);
}
std::string RefuseGradient(const Node& node) {
  if (std::string reason = RefuseType(node, 3, TypeOf(node, 3) == TypeOf(node, 0)); !reason.empty())
    return reason;
  return Refuse(node);
}

}  // namespace

WEIR_CUDA_KERNEL(RmsNorm, .launch = LaunchRmsNorm, .unsupported = Refuse)
WEIR_CUDA_KERNEL(RmsNormGradient, .launch = LaunchRmsNormGradient, .workspace_bytes = GradientWorkspace,
                 .unsupported = RefuseGradient)

}  // namespace weir
