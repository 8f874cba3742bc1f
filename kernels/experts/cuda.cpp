#include "kernels/experts/cuda_layer.h"

namespace weir {
namespace {

CudaExpertsShape ShapeOf(const KernelContext& c) {
  return CudaExpertsShape(
      ExpertsShape(c.attributes(), c.inputs[0].dims, c.inputs[1].dims, c.inputs[4].dims));
}

int64_t Workspace(const Node& node, ExpertsPass pass) {
  return CudaExperts::WorkspaceBytes(CudaExpertsShape(ExpertsShape(node)), node.in(0)->dtype, pass);
}

}  // namespace

const Kernel& ExpertsCudaKernel() {
  static const Kernel kernel{
      .launch =
          [](KernelContext& c) { CudaExperts(c, ShapeOf(c), ExpertsPass::kForward).Forward(); },
      .workspace_bytes = [](const Node& node) { return Workspace(node, ExpertsPass::kForward); }};
  return kernel;
}

const Kernel& ExpertsGradientCudaKernel() {
  static const Kernel kernel{
      .launch =
          [](KernelContext& c) { CudaExperts(c, ShapeOf(c), ExpertsPass::kBackward).Backward(); },
      .workspace_bytes = [](const Node& node) { return Workspace(node, ExpertsPass::kBackward); }};
  return kernel;
}

}  // namespace weir
