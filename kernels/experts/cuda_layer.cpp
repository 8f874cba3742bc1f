#include "kernels/experts/cuda_layer.h"

#include <algorithm>

#include "backend/cuda/cuda_error.h"
#include "backend/step_split.h"

namespace weir {
namespace {

constexpr int64_t kCudaChunkTokens = 32768;

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

CudaExpertBatch::Shape BatchShape(const CudaExpertsShape& shape, const Attributes& attributes,
                                  DType dtype, ExpertsPass pass) {
  return {shape.ChunkTokens() * shape.s.k,
          {shape.s.h, shape.s.i, ExpertActivation(attributes)},
          dtype,
          pass};
}

// Of all chunks: an expert's rows in a leaf are cut every unit_rows.
int64_t UnitWords(const CudaExpertsShape& shape) {
  const ExpertsShape& s = shape.s;
  const int64_t units = s.leaves * s.e + s.n * s.k / s.unit_rows;
  return UnitTableWords(units, 0) + s.leaves * UnitTableWords(0, s.e);
}

}  // namespace

CudaExpertsShape::CudaExpertsShape(const ExpertsShape& shape)
    : s(shape),
      chunk_leaves(std::clamp<int64_t>(kCudaChunkTokens / std::max<int64_t>(1, s.LeafTokens()), 1,
                                       s.leaves)) {}

std::vector<int64_t> CudaRouteCounts::Count(const Tensor& ids, int64_t leaves, int64_t experts,
                                            int64_t* device, const CudaStream& queue) {
  const int64_t cells = leaves * experts, n = ids.dims[0], k = ids.dims[1];
  Fill(device, 0, cells * 8, queue);
  Fill(device + cells, 0x7f, 8, queue);
  cuda::CountRoutes(ids.data<int64_t>(), {n, leaves}, k, experts, device, device + cells,
                    queue.stream);
  std::vector<int64_t> counts(static_cast<size_t>(cells + 1));
  Download(counts.data(), device, (cells + 1) * 8, queue);
  const int64_t bad = counts.back();
  counts.pop_back();
  if (bad >= n * k) return counts;
  int64_t id = 0;
  Download(&id, ids.data<int64_t>() + bad, 8, queue);
  throw Error(ErrorCode::kInvalidArgument,
              StrCat("Experts: expert id ", id, " at token ", bad / k, " slot ", bad % k,
                     " is outside [0,", experts, ")"));
}

ExpertGradients CudaGradientOutputs(const KernelContext& c) {
  const auto output = [&](size_t o) {
    if (o >= c.outputs.size() || !c.outputs[o]) return static_cast<float*>(nullptr);
    if (!c.has(o + 6)) {
      Fill(c.outputs[o].bytes, 0, c.outputs[o].size_bytes(),
           static_cast<const CudaStream&>(*c.stream));
    }
    return c.outputs[o].data<float>();
  };
  return {output(2), output(3), output(4), output(5)};
}

CudaExperts::Buffers::Buffers(const CudaExpertsShape& shape, const CudaExpertBatch::Shape& rows,
                              WorkspaceLayout& layout)
    : counts(layout.Take<int64_t>(CudaRouteCounts::Words(shape.s.leaves, shape.s.e))),
      units(layout.Take<int64_t>(UnitWords(shape))),
      table{.first = layout.Take<int64_t>(shape.s.e + 1),
            .routes = layout.Take<int64_t>(rows.rows),
            .row_at = layout.Take<int64_t>(rows.rows),
            .tiles = layout.Take<int32_t>(cuda::RouteTiles(rows.rows) * shape.s.e)},
      x(layout.Take<std::byte>(BytesOf(rows.dtype, rows.rows * shape.s.h))),
      dy(rows.pass == ExpertsPass::kForward
             ? nullptr
             : layout.Take<std::byte>(BytesOf(rows.dtype, rows.rows * shape.s.h))),
      batch(rows, layout) {}

int64_t CudaExperts::WorkspaceBytes(const CudaExpertsShape& shape, DType dtype, ExpertsPass pass) {
  WorkspaceLayout layout(nullptr);
  [[maybe_unused]] const Buffers buffers(shape, BatchShape(shape, {}, dtype, pass), layout);
  return layout.bytes();
}

CudaExperts::CudaExperts(KernelContext& context, const CudaExpertsShape& shape, ExpertsPass pass)
    : c_(context),
      shape_(shape),
      s_(shape_.s),
      dtype_(context.inputs[0].dtype),
      queue_(CudaQueue(context)),
      layout_(context.workspace.data()),
      b_(shape_, BatchShape(shape_, context.attributes(), dtype_, pass), layout_),
      counts_(CudaRouteCounts::Count(context.inputs[1], s_.leaves, s_.e, b_.counts, queue_)) {
  b_.batch.Bind(queue_, context.inputs[3].dtype);
  PlanChunks();
  TellLoad();
}

void CudaExperts::TellLoad() const {
  ExpertLoad load{.routes = std::vector<int64_t>(static_cast<size_t>(s_.e)), .chunks = std::ssize(chunks_)};
  for (size_t cell = 0; cell < counts_.size(); ++cell)
    load.routes[cell % load.routes.size()] += counts_[cell];
  TellExpertLoad(std::move(load));
}

void CudaExperts::PlanChunks() {
  const auto position = [&](int64_t leaf) {
    return leaf * (s_.n / s_.leaves) + std::min(leaf, s_.n % s_.leaves);
  };
  for (int64_t leaf = 0; leaf < s_.leaves; leaf += shape_.chunk_leaves) {
    const int64_t end = std::min(s_.leaves, leaf + shape_.chunk_leaves), first = position(leaf);
    Chunk chunk{{{s_.n, s_.leaves}, first, position(end) - first, s_.k, s_.e}, {}, {}, {}};
    if (chunk.routes.routes() == 0) continue;
    PlanRows(chunk, leaf, end);
    chunk.table = AppendUnits(chunk.units, 0, s_.e, words_);
    chunks_.push_back(std::move(chunk));
  }
  if (words_.empty()) return;
  CheckCuda(cudaMemcpyAsync(b_.units, words_.data(), words_.size() * sizeof(int64_t),
                            cudaMemcpyHostToDevice, queue_.stream),
            "Experts");
}

void CudaExperts::PlanRows(Chunk& chunk, int64_t first_leaf, int64_t end_leaf) {
  const auto matrix = [&](size_t input, int64_t expert) {
    const Tensor& all = c_.inputs[input];
    return all.bytes + BytesOf(all.dtype, expert * all.dims[1] * all.dims[2]);
  };
  int64_t row = 0;
  for (int64_t e = 0; e < s_.e; ++e) {
    const int64_t begin = row;
    for (int64_t leaf = first_leaf; leaf < end_leaf; ++leaf) {
      const int64_t end = row + counts_[static_cast<size_t>(leaf * s_.e + e)];
      for (int64_t unit = row; unit < end; unit = row) {
        row = std::min(end, unit + s_.unit_rows);
        chunk.units.push_back({e, unit, row});
      }
    }
    if (row > begin) chunk.experts.push_back({begin, row, matrix(3, e), matrix(4, e)});
  }
}

void CudaExperts::Sort(const Chunk& chunk) {
  cuda::SortRoutes(c_.inputs[1].data<int64_t>(), chunk.routes, b_.table, queue_.stream);
}

CudaExpertBatch::Rows CudaExperts::RowsOf(const Chunk& chunk) const {
  return {.count = chunk.routes.routes(),
          .x = b_.x,
          .dy = b_.dy,
          .ids = c_.inputs[1].data<int64_t>(),
          .routes = b_.table.routes,
          .gate_up_bias = Floats(5),
          .down_bias = Floats(6),
          .weights = Floats(2)};
}

void CudaExperts::Gather(const Chunk& chunk, const Tensor& from, std::byte* to) {
  cuda::SpreadRows(from.bytes, b_.table, chunk.routes, At(s_.h), to, queue_.stream);
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

// The rows of x, where the products want them beside each other, give way to those of y.
void CudaExperts::Forward() {
  if (s_.k == 0) Fill(c_.outputs[0].bytes, 0, c_.outputs[0].size_bytes(), queue_);
  for (const Chunk& chunk : chunks_) {
    Sort(chunk);
    CudaExpertBatch::Rows rows = RowsOf(chunk);
    rows.tokens = c_.inputs[0].bytes;
    rows.top_k = s_.k;
    b_.batch.Forward(chunk.experts, rows);
    Fold(chunk, Floats(2), Floats(6), c_.outputs[0]);
  }
}

// The rows of x give way to those of dx once the weight gradients have read them.
void CudaExperts::Backward() {
  const ExpertGradients out = CudaGradientOutputs(c_);
  if (s_.k == 0) Fill(c_.outputs[0].bytes, 0, c_.outputs[0].size_bytes(), queue_);
  for (const Chunk& chunk : chunks_) {
    Sort(chunk);
    Gather(chunk, c_.inputs[0], b_.x);
    Gather(chunk, c_.inputs[7], b_.dy);
    b_.batch.Differentiate(chunk.experts, RowsOf(chunk), c_.outputs[1].data<float>());
    const cuda::UnitRun run{.row = b_.units + chunk.table.row,
                            .first = b_.units + chunk.table.first,
                            .experts = s_.e,
                            .begin = 0,
                            .end = std::ssize(chunk.units),
                            .origin = 0};
    b_.batch.SumWeightGradients({run, chunk.units}, RowsOf(chunk), out);
    b_.batch.InputGradient(chunk.experts, RowsOf(chunk));
    Fold(chunk, nullptr, nullptr, c_.outputs[0]);
  }
}

}  // namespace weir
