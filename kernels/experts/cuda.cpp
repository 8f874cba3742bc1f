#include "kernels/experts/cuda_layer.h"

namespace weir {
namespace {

using Pass = CudaExperts::Pass;

CudaExpertsShape ShapeOf(const KernelContext& c) {
  return CudaExpertsShape(
      ExpertsShape(c.attributes(), c.inputs[0].dims, c.inputs[1].dims, c.inputs[4].dims));
}

int64_t Workspace(const Node& node, Pass pass) {
  return CudaExperts::WorkspaceBytes(CudaExpertsShape(ExpertsShape(node)), node.in(0)->dtype, pass);
}

}  // namespace

const Kernel& ExpertsCudaKernel() {
  static const Kernel kernel{
      .launch = [](KernelContext& c) { CudaExperts(c, ShapeOf(c), Pass::kForward).Forward(); },
      .workspace_bytes = [](const Node& node) { return Workspace(node, Pass::kForward); }};
  return kernel;
}

const Kernel& ExpertsGradientCudaKernel() {
  static const Kernel kernel{
      .launch = [](KernelContext& c) { CudaExperts(c, ShapeOf(c), Pass::kBackward).Backward(); },
      .workspace_bytes = [](const Node& node) { return Workspace(node, Pass::kBackward); }};
  return kernel;
}

}  // namespace weir
