#include "backend/cuda/cuda_stream.h"
#include "kernels/device/block.h"
#include "kernels/device/types.h"
#include "kernels/elementwise/cuda.h"
#include "kernels/gemm/reference.h"

namespace weir {
namespace {

void LaunchGemmBiasGradient(KernelContext& c) {
  const Tensor &dy = c.inputs[1], &dc = c.outputs[0];
  const auto [row, column] = GemmBiasStrides(c.inputs[0].dims);
  SumBlockOnDevice({dy.dims, {row, column}, {dy.dims[1], 1}}, dc, dy, CudaQueue(c).stream);
  const float beta = static_cast<float>(c.attributes().Float("beta", 1));
  if (beta != 1) cuda::ApplyScale(dc.dtype, dc.bytes, dc.elements(), beta, CudaQueue(c).stream);
}

std::string Refuse(const Node& node) {
  return RefuseType(node, 1,
                    TypeOf(node, 1) == DType::kFloat32 && node.out(0)->dtype == DType::kFloat32);
}

}  // namespace

WEIR_CUDA_KERNEL(GemmBiasGradient, .launch = LaunchGemmBiasGradient, .unsupported = Refuse)

}  // namespace weir
