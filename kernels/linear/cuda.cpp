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

// Library workspace, then a token block of dy and one of x in aligned rows, where theirs are not.
struct GradientWorkspace {
  GradientWorkspace(DType dtype, int64_t rows, int64_t m, int64_t k)
      : dy((cuda::GemmWorkspaceBytes(dtype) + 255) / 256 * 256),
        x(dy + (cuda::PackedBytes(dtype, std::min(rows, kTokenBlockRows), m) + 255) / 256 * 256),
        end(x + cuda::PackedBytes(dtype, std::min(rows, kTokenBlockRows), k)) {}
  int64_t dy, x, end;
};

int64_t RowsOf(const Dims& x) { return NumElements(Dims(x.begin(), x.end() - 1)); }

int64_t WeightGradientWorkspace(const Node& node) {
  const Dims x = ToDims(node.in(0)->shape), dy = ToDims(node.in(1)->shape);
  return GradientWorkspace(node.in(0)->dtype, RowsOf(x), dy.back(), x.back()).end;
}

void LaunchLinearWeightGradient(KernelContext& c) {
  const Tensor &x = c.inputs[0], &dy = c.inputs[1], &dw = c.outputs[0];
  const int64_t m = dw.dims[0], k = dw.dims[1], n = RowsOf(x.dims);
  const GradientWorkspace workspace(x.dtype, n, m, k);
  CudaStream& queue = CudaQueue(c);
  for (int64_t row = 0; row == 0 || row < n; row += kTokenBlockRows) {
    const bool add = row > 0 || c.has(2);
    const int64_t rows = std::min(kTokenBlockRows, n - row);
    cuda::GemmCall call{
        .m = m,
        .n = k,
        .k = rows,
        .a = cuda::Packed(queue, {dy.bytes + BytesOf(dy.dtype, row * m), dy.dtype, m, true}, rows,
                          m, c.workspace.data() + workspace.dy),
        .b = cuda::Packed(queue, {x.bytes + BytesOf(x.dtype, row * k), x.dtype, k}, rows, k,
                          c.workspace.data() + workspace.x),
        .c = dw.bytes,
        .c_dtype = dw.dtype,
        .c_stride = k,
        .sum = add ? cuda::GemmSum::kFold : cuda::GemmSum::kSet};
    cuda::Gemm(queue, call, c.workspace.data());
  }
}

}  // namespace

const Kernel& LinearCudaKernel() {
  static const Kernel kernel{.launch = LaunchLinear, .workspace_bytes = LinearWorkspace};
  return kernel;
}

const Kernel& LinearWeightGradientCudaKernel() {
  static const Kernel kernel{.launch = LaunchLinearWeightGradient,
                             .workspace_bytes = WeightGradientWorkspace};
  return kernel;
}

}  // namespace weir
