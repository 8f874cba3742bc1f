#include "kernels/gemm/cuda.h"

#include <algorithm>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/cuda_stream.h"
#include "kernels/common/token_blocks.h"

namespace weir {
namespace {

int64_t RowsOf(const Dims& x) { return NumElements(Dims(x.begin(), x.end() - 1)); }

// Rows of bfloat16 results that are not aligned (a vocabulary that is no multiple of 8) are made in aligned
// scratch, so many at a time: the library's kernels for them need not add as those of a strip of logits do.
constexpr int64_t kScratchRows = 512;

bool NeedsScratch(DType dtype, int64_t columns) { return dtype == DType::kBFloat16 && columns % 8 != 0; }
int64_t ScratchOffset(DType dtype) { return (cuda::GemmWorkspaceBytes(dtype) + 255) / 256 * 256; }
int64_t ScratchStride(int64_t columns) { return (columns + 7) / 8 * 8; }

int64_t LinearWorkspace(const Node& node) {
  const DType dtype = node.in(0)->dtype;
  const int64_t rows = RowsOf(ToDims(node.in(0)->shape)), columns = ToDims(node.in(1)->shape)[0];
  if (!NeedsScratch(node.out(0)->dtype, columns)) return cuda::GemmWorkspaceBytes(dtype);
  return ScratchOffset(dtype) + BytesOf(DType::kBFloat16, std::min(rows, kScratchRows) * ScratchStride(columns));
}

void LaunchLinear(KernelContext& c) {
  const Tensor &x = c.inputs[0], &weight = c.inputs[1], &y = c.outputs[0];
  const int64_t m = weight.dims[0], k = weight.dims[1], n = m == 0 ? 0 : y.elements() / m;
  cuda::GemmCall call{.m = n,
                      .n = m,
                      .k = k,
                      .a = {x.bytes, x.dtype, k},
                      .b = {weight.bytes, weight.dtype, k, true},
                      .c = y.bytes,
                      .c_dtype = y.dtype,
                      .c_stride = m,
                      .bias = c.has(2) ? c.inputs[2].data<float>() : nullptr};
  CudaStream& queue = CudaQueue(c);
  if (!NeedsScratch(y.dtype, m)) return cuda::Gemm(queue, call, c.workspace.data());
  call.c = c.workspace.data() + ScratchOffset(x.dtype);
  call.c_stride = ScratchStride(m);
  const auto bytes = [&](int64_t elements) { return static_cast<size_t>(BytesOf(y.dtype, elements)); };
  for (int64_t row = 0; row < n; row += kScratchRows) {
    call.m = std::min(kScratchRows, n - row);
    call.a.data = x.bytes + BytesOf(x.dtype, row * k);
    cuda::Gemm(queue, call, c.workspace.data());
    CheckCuda(cudaMemcpy2DAsync(y.bytes + bytes(row * m), bytes(m), call.c, bytes(call.c_stride), bytes(m),
                                static_cast<size_t>(call.m), cudaMemcpyDeviceToDevice, queue.stream),
              "copying a product's rows");
  }
}

// Library workspace, then a token block of dy and one of x in aligned rows, where theirs are not.
struct GradientWorkspace {
  GradientWorkspace(DType dtype, int64_t rows, int64_t m, int64_t k)
      : dy((cuda::GemmWorkspaceBytes(dtype) + 255) / 256 * 256),
        x(dy + (cuda::PackedBytes(dtype, std::min(rows, kTokenBlockRows), m) + 255) / 256 * 256),
        end(x + cuda::PackedBytes(dtype, std::min(rows, kTokenBlockRows), k)) {}
  int64_t dy, x, end;
};

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
