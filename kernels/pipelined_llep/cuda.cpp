#include "backend/cuda/cuda_error.h"
#include "kernels/experts/cuda_layer.h"
#include "kernels/pipelined_llep/cuda_dispatch.h"

namespace weir {
namespace {

// On one rank nothing travels: the chunks are those of Experts.
CudaExpertsShape ShapeOf(const Attributes& attributes, const Dims& x, const Dims& ids,
                         const Dims& down) {
  return CudaExpertsShape(ExpertsShape(attributes, x, ids, down),
                          DispatchShape(attributes, x, ids, down).sizes.leaves);
}
CudaExpertsShape ShapeOf(const KernelContext& c) {
  return ShapeOf(c.attributes(), c.inputs[0].dims, c.inputs[1].dims, c.inputs[4].dims);
}

bool Distributed(const Node& node) { return node.attributes.Int("expert_parallel", 1) > 1; }

int64_t Workspace(const Node& node, ExpertsPass pass) {
  if (Distributed(node)) return CudaDispatch::WorkspaceBytes(node, pass);
  const CudaExpertsShape shape = ShapeOf(node.attributes, ToDims(node.in(0)->shape),
                                         ToDims(node.in(1)->shape), ToDims(node.in(4)->shape));
  return CudaExperts::WorkspaceBytes(shape, node.in(0)->dtype, pass);
}

void LaunchForward(KernelContext& c) {
  if (Distributed(c.node)) return CudaDispatch(c, ExpertsPass::kForward).Run();
  CudaExperts experts(c, ShapeOf(c), ExpertsPass::kForward);
  CheckCuda(cudaMemcpyAsync(c.outputs[1].bytes, experts.counts(),
                            static_cast<size_t>(c.outputs[1].size_bytes()),
                            cudaMemcpyDeviceToDevice, CudaQueue(c).stream),
            "PipelinedLlep");
  experts.Forward();
}

void LaunchBackward(KernelContext& c) {
  if (Distributed(c.node)) return CudaDispatch(c, ExpertsPass::kBackward).Run();
  CudaExperts(c, ShapeOf(c), ExpertsPass::kBackward).Backward();
}

}  // namespace

const Kernel& PipelinedLlepCudaKernel() {
  static const Kernel kernel{.launch = LaunchForward, .workspace_bytes = [](const Node& node) {
                               return Workspace(node, ExpertsPass::kForward);
                             }};
  return kernel;
}

const Kernel& PipelinedLlepGradientCudaKernel() {
  static const Kernel kernel{.launch = LaunchBackward, .workspace_bytes = [](const Node& node) {
                               return Workspace(node, ExpertsPass::kBackward);
                             }};
  return kernel;
}

}  // namespace weir
