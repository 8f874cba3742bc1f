#include "kernels/gemm/cuda.h"

#include <algorithm>

#include "backend/cuda/cuda_stream.h"
#include "kernels/common/token_blocks.h"

namespace weir {
namespace {

int64_t LinearWorkspace(const Node& node) { return cuda::GemmWorkspaceBytes(node.in(0)->dtype); }

void LaunchLinear(KernelContext& c) {
  const Tensor &x = c.inputs[0], &weight = c.inputs[1], &y = c.outputs[0];
  const int64_t m = weight.dims[0], k = weight.dims[1];
  cuda::Gemm(CudaQueue(c),
             {.m = m == 0 ? 0 : y.elements() / m,
              .n = m,
              .k = k,
              .a = {x.bytes, x.dtype, k},
              .b = {weight.bytes, weight.dtype, k, true},
              .c = y.bytes,
              .c_dtype = y.dtype,
              .c_stride = m,
              .bias = c.has(2) ? c.inputs[2].data<float>() : nullptr},
             c.workspace.data());
}

void LaunchLinearWeightGradient(KernelContext& c) {
  const Tensor &x = c.inputs[0], &dy = c.inputs[1], &dw = c.outputs[0];
  const int64_t m = dw.dims[0], k = dw.dims[1],
                n = NumElements(Dims(x.dims.begin(), x.dims.end() - 1));
  for (int64_t row = 0; row == 0 || row < n; row += kTokenBlockRows) {
    const bool add = row > 0 || c.has(2);
    cuda::Gemm(CudaQueue(c),
               {.m = m,
                .n = k,
                .k = std::min(kTokenBlockRows, n - row),
                .a = {dy.bytes + BytesOf(dy.dtype, row * m), dy.dtype, m, true},
                .b = {x.bytes + BytesOf(x.dtype, row * k), x.dtype, k},
                .c = dw.bytes,
                .c_dtype = dw.dtype,
                .c_stride = k,
                .sum = add ? cuda::GemmSum::kFold : cuda::GemmSum::kSet},
               c.workspace.data());
  }
}

}  // namespace

const Kernel& LinearCudaKernel() {
  static const Kernel kernel{.launch = LaunchLinear, .workspace_bytes = LinearWorkspace};
  return kernel;
}

const Kernel& LinearWeightGradientCudaKernel() {
  static const Kernel kernel{.launch = LaunchLinearWeightGradient,
                             .workspace_bytes = LinearWorkspace};
  return kernel;
}

}  // namespace weir
