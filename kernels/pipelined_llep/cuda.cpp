#include "backend/cuda/cuda_error.h"
#include "kernels/experts/cuda_layer.h"
#include "kernels/pipelined_llep/shape.h"

namespace weir {
namespace {

using Pass = CudaExperts::Pass;

CudaExpertsShape ShapeOf(const Attributes& attributes, const Dims& x, const Dims& ids,
                         const Dims& down) {
  return CudaExpertsShape(ExpertsShape(attributes, x, ids, down),
                          DispatchShape(attributes, x, ids, down).sizes.leaves);
}
CudaExpertsShape ShapeOf(const KernelContext& c) {
  return ShapeOf(c.attributes(), c.inputs[0].dims, c.inputs[1].dims, c.inputs[4].dims);
}

int64_t Workspace(const Node& node, Pass pass) {
  const CudaExpertsShape shape = ShapeOf(node.attributes, ToDims(node.in(0)->shape),
                                         ToDims(node.in(1)->shape), ToDims(node.in(4)->shape));
  return CudaExperts::WorkspaceBytes(shape, node.in(0)->dtype, pass);
}

std::string Unsupported(const Node& node) {
  const int64_t ranks = node.attributes.Int("expert_parallel", 1);
  return ranks == 1 ? "" : StrCat("experts spread over ", ranks, " GPUs");
}

void LaunchForward(KernelContext& c) {
  CudaExperts experts(c, ShapeOf(c), Pass::kForward);
  CheckCuda(cudaMemcpyAsync(c.outputs[1].bytes, experts.counts(),
                            static_cast<size_t>(c.outputs[1].size_bytes()),
                            cudaMemcpyDeviceToDevice, CudaQueue(c).stream),
            "PipelinedLlep");
  experts.Forward();
}

}  // namespace

const Kernel& PipelinedLlepCudaKernel() {
  static const Kernel kernel{
      .launch = LaunchForward,
      .workspace_bytes = [](const Node& node) { return Workspace(node, Pass::kForward); },
      .unsupported = Unsupported};
  return kernel;
}

const Kernel& PipelinedLlepGradientCudaKernel() {
  static const Kernel kernel{
      .launch = [](KernelContext& c) { CudaExperts(c, ShapeOf(c), Pass::kBackward).Backward(); },
      .workspace_bytes = [](const Node& node) { return Workspace(node, Pass::kBackward); },
      .unsupported = Unsupported};
  return kernel;
}

}  // namespace weir
