#include "kernels/gemm/cuda.h"

#include <algorithm>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/cuda_stream.h"
#include "kernels/mat_mul/geometry.h"

namespace weir {
namespace {

constexpr int64_t kBlockRows = 4096;  // of a long bfloat16 sum (cuda::kSumGroup) at a time

bool IsLong(const MatMulGeometry& g, DType a, DType b, DType y) {
  return g.k > cuda::kSumGroup && a == DType::kBFloat16 && b == DType::kBFloat16 &&
         y == DType::kBFloat16;
}

// Library workspace, then float32 sums of a block of rows, then such a block of `a` in aligned
// rows.
int64_t SumsOffset(DType dtype) { return (cuda::GemmWorkspaceBytes(dtype) + 255) / 256 * 256; }

int64_t PackedOffset(DType dtype, bool is_long, int64_t rows, int64_t n) {
  return SumsOffset(dtype) + (is_long ? 4 * std::min(kBlockRows, rows) * n : 0);
}

int64_t MatMulWorkspace(const Node& node) {
  const MatMulGeometry g = MakeMatMulGeometry(ToDims(node.in(0)->shape), ToDims(node.in(1)->shape));
  const DType dtype = node.in(0)->dtype;
  const bool is_long = IsLong(g, dtype, node.in(1)->dtype, node.out(0)->dtype);
  const int64_t rows = g.m * g.batches,
                packed = cuda::PackedBytes(dtype, std::min(kBlockRows, rows), g.k);
  if (!is_long && packed == 0) return cuda::GemmWorkspaceBytes(dtype);
  return PackedOffset(dtype, is_long, rows, g.n) + packed;
}

// Sums over batches that share an operand are float32 until they are done.
int64_t MatMulGradientWorkspace(const Node& node) {
  const int64_t sums =
      node.out(0)->dtype == DType::kFloat32 ? 0 : 4 * NumElements(ToDims(node.out(0)->shape)) + 256;
  return cuda::GemmWorkspaceBytes(node.in(0)->dtype) + sums;
}

// One matrix b under all rows of a: the batches are rows of one product.
void FlattenRows(MatMulGeometry& g) {
  if (NumElements(g.b_batch) != 1 || NumElements(g.a_batch) != g.batches) return;
  g.m *= g.batches;
  g.batches = 1;
  g.batch = g.a_batch = g.b_batch = {};
}

std::byte* At(const void* data, DType dtype, int64_t element) {
  return static_cast<std::byte*>(const_cast<void*>(data)) + BytesOf(dtype, element);
}

// Groups of k, each from zero, folded in float32 and rounded once.
void MultiplyLong(CudaStream& queue, const cuda::GemmCall& rows, std::byte* workspace) {
  auto* sums = reinterpret_cast<float*>(workspace + SumsOffset(rows.a.dtype));
  cuda::GemmCall group = rows;
  group.c = sums;
  group.c_dtype = DType::kFloat32;
  for (int64_t k = 0; k < rows.k; k += cuda::kSumGroup) {
    group.k = std::min(cuda::kSumGroup, rows.k - k);
    group.a.data = At(rows.a.data, rows.a.dtype, k);
    group.b.data = At(rows.b.data, rows.b.dtype, k * rows.b.stride);
    group.sum = k > 0 ? cuda::GemmSum::kFold : cuda::GemmSum::kSet;
    cuda::Gemm(queue, group, workspace);
  }
  cuda::RoundToBFloat16(sums, rows.c, rows.m * rows.n, queue.stream);
}

// Blocks of rows, for what needs memory of its own for them.
void MultiplyBlocks(CudaStream& queue, const cuda::GemmCall& call, bool is_long,
                    std::byte* workspace) {
  for (int64_t row = 0; row < call.m; row += kBlockRows) {
    cuda::GemmCall rows = call;
    rows.m = std::min(kBlockRows, call.m - row);
    rows.a.data = At(call.a.data, call.a.dtype, row * call.a.stride);
    rows.a = cuda::Packed(queue, rows.a, rows.m, rows.k,
                          workspace + PackedOffset(call.a.dtype, is_long, call.m, call.n));
    rows.c = At(call.c, call.c_dtype, row * call.c_stride);
    is_long ? MultiplyLong(queue, rows, workspace) : cuda::Gemm(queue, rows, workspace);
  }
}

void LaunchMatMul(KernelContext& c) {
  const Tensor &a = c.inputs[0], &b = c.inputs[1], &y = c.outputs[0];
  MatMulGeometry g = MakeMatMulGeometry(a.dims, b.dims);
  FlattenRows(g);
  for (int64_t batch = 0; batch < g.batches; ++batch) {
    const auto [ai, bi] = g.Matrices(batch);
    const cuda::GemmCall call{.m = g.m,
                              .n = g.n,
                              .k = g.k,
                              .a = {At(a.bytes, a.dtype, ai * g.m * g.k), a.dtype, g.k},
                              .b = {At(b.bytes, b.dtype, bi * g.k * g.n), b.dtype, g.n},
                              .c = y.bytes + BytesOf(y.dtype, batch * g.m * g.n),
                              .c_dtype = y.dtype,
                              .c_stride = g.n};
    const bool is_long = IsLong(g, a.dtype, b.dtype, y.dtype);
    if (is_long || cuda::PackedBytes(a.dtype, g.m, g.k) > 0) {
      MultiplyBlocks(CudaQueue(c), call, is_long, c.workspace.data());
    } else {
      cuda::Gemm(CudaQueue(c), call, c.workspace.data());
    }
  }
}

void LaunchMatMulGradient(KernelContext& c) {
  const Tensor &a = c.inputs[0], &b = c.inputs[1], &dy = c.inputs[2], &out = c.outputs[0];
  MatMulGeometry g = MakeMatMulGeometry(a.dims, b.dims);
  FlattenRows(g);
  const bool left = c.attributes().Int("input") == 0;
  // Batches that share the operand add up in order, one after the other.
  const bool shared = NumElements(left ? g.a_batch : g.b_batch) != g.batches;
  CudaStream& queue = CudaQueue(c);
  Tensor sums = out;
  if (shared && out.dtype != DType::kFloat32) {
    sums.bytes = c.workspace.data() + SumsOffset(a.dtype);
    sums.dtype = DType::kFloat32;
  }
  if (shared)
    CheckCuda(cudaMemsetAsync(sums.bytes, 0, static_cast<size_t>(sums.size_bytes()), queue.stream),
              "MatMulGradient");
  for (int64_t batch = 0; batch < g.batches; ++batch) {
    const auto [ai, bi] = g.Matrices(batch);
    const cuda::Matrix am{At(a.bytes, a.dtype, ai * g.m * g.k), a.dtype, g.k, true},
        bm{At(b.bytes, b.dtype, bi * g.k * g.n), b.dtype, g.n, true};
    const cuda::Matrix dm{At(dy.bytes, dy.dtype, batch * g.m * g.n), dy.dtype, g.n};
    const int64_t at = left ? ai * g.m * g.k : bi * g.k * g.n;
    cuda::Gemm(queue,
               {.m = left ? g.m : g.k,
                .n = left ? g.k : g.n,
                .k = left ? g.n : g.m,
                .a = left ? dm : am,
                .b = left ? bm : dm,
                .c = sums.bytes + BytesOf(sums.dtype, at),
                .c_dtype = sums.dtype,
                .c_stride = left ? g.k : g.n,
                .sum = shared ? cuda::GemmSum::kContinue : cuda::GemmSum::kSet},
               c.workspace.data());
  }
  if (sums.bytes != out.bytes)
    cuda::RoundToBFloat16(sums.data<float>(), out.bytes, out.elements(), queue.stream);
}

}  // namespace

const Kernel& MatMulCudaKernel() {
  static const Kernel kernel{.launch = LaunchMatMul, .workspace_bytes = MatMulWorkspace};
  return kernel;
}

const Kernel& MatMulGradientCudaKernel() {
  static const Kernel kernel{.launch = LaunchMatMulGradient,
                             .workspace_bytes = MatMulGradientWorkspace};
  return kernel;
}

}  // namespace weir
