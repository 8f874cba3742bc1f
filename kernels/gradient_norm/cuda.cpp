#include "kernels/gradient_norm/cuda.h"

#include "backend/cuda/cuda_stream.h"
#include "kernels/device/types.h"

namespace weir {
namespace {

int64_t BlocksOf(int64_t elements) { return DivCeil(elements, cuda::kNormBlock); }

// One double per block of every accumulator.
int64_t Workspace(const Node& node) {
  int64_t blocks = 0;
  for (const Value* input : node.inputs) blocks += BlocksOf(NumElements(ToDims(input->shape)));
  return blocks * static_cast<int64_t>(sizeof(double));
}

void LaunchGradientNorm(KernelContext& c) {
  CUstream_st* stream = CudaQueue(c).stream;
  auto* blocks = reinterpret_cast<double*>(c.workspace.data());
  int64_t count = 0;
  for (const Tensor& x : c.inputs) {
    cuda::SquareBlocks(x.data<float>(), x.elements(), blocks + count, stream);
    count += BlocksOf(x.elements());
  }
  cuda::RootOfSum(blocks, count, c.outputs[0].data<double>(), stream);
}

void LaunchClipCoefficient(KernelContext& c) {
  cuda::ClipCoefficient(c.inputs[0].data<double>(), c.attributes().Float("max_norm", 0),
                        c.outputs[0].data<float>(), CudaQueue(c).stream);
}

}  // namespace

WEIR_CUDA_KERNEL(GradientNorm, .launch = LaunchGradientNorm, .workspace_bytes = Workspace)
WEIR_CUDA_KERNEL(ClipCoefficient, .launch = LaunchClipCoefficient)

}  // namespace weir
