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

// Library workspace, then float32 sums of a block of rows.
int64_t SumsOffset(DType dtype) { return (cuda::GemmWorkspaceBytes(dtype) + 255) / 256 * 256; }

int64_t MatMulWorkspace(const Node& node) {
  const MatMulGeometry g = MakeMatMulGeometry(ToDims(node.in(0)->shape), ToDims(node.in(1)->shape));
  const DType dtype = node.in(0)->dtype;
  if (!IsLong(g, dtype, node.in(1)->dtype, node.out(0)->dtype))
    return cuda::GemmWorkspaceBytes(dtype);
  return SumsOffset(dtype) + 4 * std::min(kBlockRows, g.m * g.batches) * g.n;
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

// Groups of k, each from zero, folded in float32.
void MultiplyLong(CudaStream& queue, const cuda::GemmCall& call, std::byte* workspace) {
  auto* sums = reinterpret_cast<float*>(workspace + SumsOffset(call.a.dtype));
  const auto at = [](const void* data, int64_t element) {
    return static_cast<const std::byte*>(data) + 2 * element;
  };
  for (int64_t row = 0; row < call.m; row += kBlockRows) {
    cuda::GemmCall group = call;
    group.m = std::min(kBlockRows, call.m - row);
    group.c = sums;
    group.c_dtype = DType::kFloat32;
    for (int64_t k = 0; k < call.k; k += cuda::kSumGroup) {
      group.k = std::min(cuda::kSumGroup, call.k - k);
      group.a.data = at(call.a.data, row * call.a.stride + k);
      group.b.data = at(call.b.data, k * call.b.stride);
      group.sum = k > 0 ? cuda::GemmSum::kFold : cuda::GemmSum::kSet;
      cuda::Gemm(queue, group, workspace);
    }
    cuda::RoundToBFloat16(sums, static_cast<std::byte*>(call.c) + 2 * row * call.n,
                          group.m * call.n, queue.stream);
  }
}

const std::byte* At(const Tensor& tensor, int64_t element) {
  return tensor.bytes + BytesOf(tensor.dtype, element);
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
                              .a = {At(a, ai * g.m * g.k), a.dtype, g.k},
                              .b = {At(b, bi * g.k * g.n), b.dtype, g.n},
                              .c = y.bytes + BytesOf(y.dtype, batch * g.m * g.n),
                              .c_dtype = y.dtype,
                              .c_stride = g.n};
    if (IsLong(g, a.dtype, b.dtype, y.dtype)) {
      MultiplyLong(CudaQueue(c), call, c.workspace.data());
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
    const cuda::Matrix am{At(a, ai * g.m * g.k), a.dtype, g.k, true},
        bm{At(b, bi * g.k * g.n), b.dtype, g.n, true};
    const cuda::Matrix dm{At(dy, batch * g.m * g.n), dy.dtype, g.n};
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
