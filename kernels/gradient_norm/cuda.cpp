#include <algorithm>

#include "backend/cuda/cuda_stream.h"
#include "kernels/device/types.h"
#include "kernels/gradient_norm/cuda.h"

namespace weir {
namespace {

// One double per accumulator, then room for the blocks of the largest.
int64_t Workspace(const Node& node) {
  int64_t blocks = 0;
  for (const Value* input : node.inputs) {
    blocks = std::max(blocks, DivCeil(NumElements(ToDims(input->shape)), cuda::kNormBlock));
  }
  return (static_cast<int64_t>(node.inputs.size()) + blocks) * static_cast<int64_t>(sizeof(double));
}

void LaunchGradientNorm(KernelContext& c) {
  CUstream_st* stream = CudaQueue(c).stream;
  const auto inputs = static_cast<int64_t>(c.inputs.size());
  auto* sums = reinterpret_cast<double*>(c.workspace.data());
  double* blocks = sums + inputs;
  for (int64_t i = 0; i < inputs; ++i) {
    const Tensor& x = c.inputs[static_cast<size_t>(i)];
    cuda::SquareBlocks(x.data<float>(), x.elements(), blocks, stream);
    cuda::SumDoubles(blocks, DivCeil(x.elements(), cuda::kNormBlock), /*root=*/false, sums + i, stream);
  }
  cuda::SumDoubles(sums, inputs, /*root=*/true, c.outputs[0].data<double>(), stream);
}

void LaunchClipCoefficient(KernelContext& c) {
  cuda::ClipCoefficient(c.inputs[0].data<double>(), c.attributes().Float("max_norm", 0), c.outputs[0].data<float>(),
                        CudaQueue(c).stream);
}

}  // namespace

WEIR_CUDA_KERNEL(GradientNorm, .launch = LaunchGradientNorm, .workspace_bytes = Workspace)
WEIR_CUDA_KERNEL(ClipCoefficient, .launch = LaunchClipCoefficient)

}  // namespace weir
