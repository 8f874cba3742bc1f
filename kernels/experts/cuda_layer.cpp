#include "kernels/experts/cuda_layer.h"

#include <algorithm>

#include "backend/cuda/cuda_error.h"
#include "kernels/gemm/cuda.h"

namespace weir {
namespace {

constexpr int64_t kCudaChunkTokens = 32768;

cuda::Gate GateOf(const Attributes& attributes) {
  const ExpertActivation act(attributes);
  return {act.kind, act.alpha, act.beta, act.limit};
}

void Fill(void* to, int byte, int64_t bytes, const CudaStream& queue) {
  if (bytes > 0)
    CheckCuda(cudaMemsetAsync(to, byte, static_cast<size_t>(bytes), queue.stream), "Experts");
}

void Download(void* to, const void* from, int64_t bytes, const CudaStream& queue) {
  CheckCuda(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, queue.stream),
      "Experts");
  CheckCuda(cudaStreamSynchronize(queue.stream), "Experts");
}

}  // namespace

CudaExpertsShape::CudaExpertsShape(const ExpertsShape& shape)
    : s(shape),
      chunk_leaves(std::clamp<int64_t>(kCudaChunkTokens / std::max<int64_t>(1, s.LeafTokens()), 1,
                                       s.leaves)) {}

CudaExperts::Buffers::Buffers(const CudaExpertsShape& shape, DType dtype, Pass pass,
                              WorkspaceLayout& layout) {
  const ExpertsShape& s = shape.s;
  const int64_t routes = shape.ChunkTokens() * s.k;
  counts = layout.Take<int64_t>(s.leaves * s.e + 1);
  table = {.first = layout.Take<int64_t>(s.e + 1),
           .routes = layout.Take<int64_t>(routes),
           .row_at = layout.Take<int64_t>(routes),
           .tiles = layout.Take<int32_t>(cuda::RouteTiles(routes) * s.e)};
  const auto rows = [&](int64_t width) {
    return layout.Take<std::byte>(BytesOf(dtype, routes * width));
  };
  const bool backward = pass == Pass::kBackward;
  x = rows(s.h);
  gate_up = rows(2 * s.i);
  a = rows(s.i);
  dy = backward ? rows(s.h) : nullptr;
  da = backward ? rows(s.i) : nullptr;
  gemm = layout.Take<std::byte>(cuda::GemmWorkspaceBytes(dtype));
}

int64_t CudaExperts::WorkspaceBytes(const CudaExpertsShape& shape, DType dtype, Pass pass) {
  WorkspaceLayout layout(nullptr);
  Buffers(shape, dtype, pass, layout);
  return layout.bytes();
}

CudaExperts::CudaExperts(KernelContext& context, const CudaExpertsShape& shape, Pass pass)
    : c_(context),
      shape_(shape),
      s_(shape_.s),
      dtype_(context.inputs[0].dtype),
      gate_(GateOf(context.attributes())),
      queue_(CudaQueue(context)),
      layout_(context.workspace.data()),
      b_(shape_, dtype_, pass, layout_),
      first_(static_cast<size_t>(s_.e + 1)) {
  CountRoutes();
}

void CudaExperts::CountRoutes() {
  const int64_t* ids = c_.inputs[1].data<int64_t>();
  const int64_t cells = s_.leaves * s_.e;
  Fill(b_.counts, 0, cells * 8, queue_);
  Fill(b_.counts + cells, 0x7f, 8, queue_);
  cuda::CountRoutes(ids, {s_.n, s_.leaves}, s_.k, s_.e, b_.counts, b_.counts + cells,
                    queue_.stream);
  counts_.resize(static_cast<size_t>(cells + 1));
  Download(counts_.data(), b_.counts, (cells + 1) * 8, queue_);
  const int64_t bad = counts_.back();
  if (bad >= s_.n * s_.k) return;
  int64_t id = 0;
  Download(&id, ids + bad, 8, queue_);
  throw Error(ErrorCode::kInvalidArgument,
              StrCat("Experts: expert id ", id, " at token ", bad / s_.k, " slot ", bad % s_.k,
                     " is outside [0,", s_.e, ")"));
}

CudaExperts::Chunk CudaExperts::Sort(int64_t first_leaf) {
  const int64_t end_leaf = std::min(s_.leaves, first_leaf + shape_.chunk_leaves);
  const auto position = [&](int64_t leaf) {
    return leaf * (s_.n / s_.leaves) + std::min(leaf, s_.n % s_.leaves);
  };
  const int64_t first = position(first_leaf);
  const Chunk chunk{
      {{s_.n, s_.leaves}, first, position(end_leaf) - first, s_.k, s_.e}, first_leaf, end_leaf};
  first_[0] = 0;
  for (int64_t e = 0; e < s_.e; ++e) {
    int64_t rows = 0;
    for (int64_t leaf = first_leaf; leaf < end_leaf; ++leaf)
      rows += counts_[static_cast<size_t>(leaf * s_.e + e)];
    first_[static_cast<size_t>(e + 1)] = first_[static_cast<size_t>(e)] + rows;
  }
  cuda::SortRoutes(c_.inputs[1].data<int64_t>(), chunk.routes, b_.table, queue_.stream);
  return chunk;
}

void CudaExperts::Multiply(const Product& p) {
  for (size_t e = 0; e + 1 < first_.size(); ++e) {
    const int64_t row = first_[e], rows = first_[e + 1] - row;
    if (rows == 0) continue;
    const auto* weights =
        p.weights.bytes + BytesOf(p.weights.dtype, static_cast<int64_t>(e) * p.n * p.k);
    cuda::Gemm(queue_,
               {.m = rows,
                .n = p.n,
                .k = p.k,
                .a = {p.rows + At(row * p.k), dtype_, p.k},
                .b = {weights, p.weights.dtype, p.transposed ? p.k : p.n, p.transposed},
                .c = p.out + At(row * p.n),
                .c_dtype = dtype_,
                .c_stride = p.n},
               b_.gemm);
  }
}

cuda::ExpertRows CudaExperts::RowsOf(const Chunk& chunk) const {
  return {.dtype = dtype_,
          .rows = chunk.routes.routes(),
          .k = s_.k,
          .h = s_.h,
          .i = s_.i,
          .ids = c_.inputs[1].data<int64_t>(),
          .routes = b_.table.routes,
          .gate_up = b_.gate_up,
          .a = b_.a,
          .gate_up_bias = Floats(5),
          .down_bias = Floats(6)};
}

void CudaExperts::Gather(const Chunk& chunk, const Tensor& from, std::byte* to) {
  cuda::GatherRows(from.bytes, b_.table.routes, chunk.routes.routes(), s_.k, At(s_.h), to,
                   queue_.stream);
}

void CudaExperts::Fold(const Chunk& chunk, const float* weights, const float* bias,
                       const Tensor& out) {
  cuda::FoldSlots({.dtype = dtype_,
                   .h = s_.h,
                   .home = b_.x,
                   .row_at = b_.table.row_at,
                   .routes = b_.table.routes,
                   .ids = c_.inputs[1].data<int64_t>(),
                   .weights = weights,
                   .bias = bias,
                   .out = out.bytes},
                  chunk.routes, queue_.stream);
}

// The rows of x give way to those of y.
void CudaExperts::Forward() {
  if (s_.k == 0) Fill(c_.outputs[0].bytes, 0, c_.outputs[0].size_bytes(), queue_);
  for (int64_t leaf = 0; leaf < s_.leaves; leaf += shape_.chunk_leaves) {
    const Chunk chunk = Sort(leaf);
    if (chunk.routes.routes() == 0) continue;
    Gather(chunk, c_.inputs[0], b_.x);
    Multiply({b_.x, c_.inputs[3], true, 2 * s_.i, s_.h, b_.gate_up});
    cuda::GatedForward(RowsOf(chunk), gate_, queue_.stream);
    Multiply({b_.a, c_.inputs[4], true, s_.h, s_.i, b_.x});
    Fold(chunk, Floats(2), Floats(6), c_.outputs[0]);
  }
}

float* CudaExperts::Gradient(size_t output) const {
  return output < c_.outputs.size() && c_.outputs[output] ? c_.outputs[output].data<float>()
                                                          : nullptr;
}

void CudaExperts::ClearFreshGradients() {
  for (size_t o = 2; o < 6; ++o) {
    if (Gradient(o) != nullptr && !c_.has(o + 6))
      Fill(c_.outputs[o].bytes, 0, c_.outputs[o].size_bytes(), queue_);
  }
}

// a holds the activation times the router's weight, so that dy^T a is ddown and dy stays as it
// came. The rows of x give way to those of dx once the weight gradients have read them.
void CudaExperts::Backward() {
  ClearFreshGradients();
  if (s_.k == 0) Fill(c_.outputs[0].bytes, 0, c_.outputs[0].size_bytes(), queue_);
  for (int64_t leaf = 0; leaf < s_.leaves; leaf += shape_.chunk_leaves) {
    const Chunk chunk = Sort(leaf);
    if (chunk.routes.routes() == 0) continue;
    Gather(chunk, c_.inputs[0], b_.x);
    Gather(chunk, c_.inputs[7], b_.dy);
    Multiply({b_.x, c_.inputs[3], true, 2 * s_.i, s_.h, b_.gate_up});
    Multiply({b_.dy, c_.inputs[4], false, s_.i, s_.h, b_.da});
    cuda::GatedBackward(
        RowsOf(chunk), gate_,
        {.da = b_.da, .dy = b_.dy, .weights = Floats(2), .dweights = c_.outputs[1].data<float>()},
        queue_.stream);
    SumWeightGradients(chunk);
    Multiply({b_.gate_up, c_.inputs[3], false, s_.h, 2 * s_.i, b_.x});
    Fold(chunk, nullptr, nullptr, c_.outputs[0]);
  }
}

cuda::UnitCuts CudaExperts::CutsOf(const Chunk& chunk) const {
  return {b_.counts, b_.table.first, chunk.first_leaf, chunk.end_leaf, s_.e, s_.unit_rows};
}

void CudaExperts::AddUnits(const Chunk& chunk, const std::byte* dy, int64_t outputs,
                           const std::byte* x, int64_t inputs, float* dw) {
  if (dw == nullptr) return;
  if (dtype_ == DType::kBFloat16 && cuda::CanSumUnits(dy, outputs, x, inputs, dw)) {
    return cuda::SumUnits(CutsOf(chunk), dy, outputs, x, inputs, dw, queue_.stream);
  }
  for (int64_t e = 0; e < s_.e; ++e) {
    int64_t row = first_[static_cast<size_t>(e)];
    for (int64_t leaf = chunk.first_leaf; leaf < chunk.end_leaf; ++leaf) {
      const int64_t end = row + counts_[static_cast<size_t>(leaf * s_.e + e)];
      for (int64_t rows; row < end; row += rows) {
        rows = std::min(s_.unit_rows, end - row);
        cuda::Gemm(queue_,
                   {.m = outputs,
                    .n = inputs,
                    .k = rows,
                    .a = {dy + At(row * outputs), dtype_, outputs, true},
                    .b = {x + At(row * inputs), dtype_, inputs},
                    .c = dw + e * outputs * inputs,
                    .c_dtype = DType::kFloat32,
                    .c_stride = inputs,
                    .sum = cuda::GemmSum::kFold},
                   b_.gemm);
      }
    }
  }
}

void CudaExperts::SumWeightGradients(const Chunk& chunk) {
  AddUnits(chunk, b_.gate_up, 2 * s_.i, b_.x, s_.h, Gradient(2));
  AddUnits(chunk, b_.dy, s_.h, b_.a, s_.i, Gradient(3));
  const auto sum_bias = [&](size_t output, const std::byte* rows, const float* weights,
                            int64_t width) {
    if (Gradient(output) == nullptr) return;
    cuda::SumBias(CutsOf(chunk), rows, dtype_, {weights, b_.table.routes}, width, Gradient(output),
                  queue_.stream);
  };
  sum_bias(4, b_.gate_up, nullptr, 2 * s_.i);
  sum_bias(5, b_.dy, Floats(2), s_.h);
}

}  // namespace weir
