#include "kernels/pipelined_llep/cuda_dispatch.h"

#include <algorithm>

#include "backend/cuda/cuda_error.h"
#include "kernels/accumulate/cuda.h"
#include "kernels/experts/cuda_layer.h"
#include "kernels/pipelined_llep/cuda.h"

namespace weir {
namespace {

constexpr int64_t kCudaBatchRows = 16384;       // rows whose intermediates live at once
constexpr int64_t kLeastRows = 4096;            // worth a batch of its own
constexpr size_t kX = 0, kWeight = 1, kDy = 2;  // lanes; x and weight return as dx and dweight
constexpr const char* kWhere = "PipelinedLlep";

std::vector<int64_t> LaneBytes(const DispatchShape& s, const CudaExpertBatch::Shape& batch) {
  const int64_t row = BytesOf(batch.dtype, s.layer.h);
  if (batch.pass == ExpertsPass::kForward) return {row};
  return {row, sizeof(float), row};
}

std::vector<int64_t> PartBytes(const DispatchShape& s, DType weights) {
  return {BytesOf(weights, 2 * s.layer.i * s.layer.h), BytesOf(weights, s.layer.h * s.layer.i)};
}

template <class T>
T* TakeIf(bool wanted, int64_t count, WorkspaceLayout& layout) {
  return wanted ? layout.Take<T>(count) : nullptr;
}

}  // namespace

CudaExpertBatch::Shape CudaDispatch::BatchShape(const DispatchShape& s, DType dtype,
                                                ExpertsPass pass) {
  // Whole units only: a longer unit makes its own batch.
  const int64_t rows = std::min(s.rows, std::max(kCudaBatchRows, UnitRowBound(s.knobs)));
  return {rows, s.layer, dtype, pass};
}

CudaDispatch::Buffers::Buffers(const DispatchShape& s, const Has& has,
                               const CudaExpertBatch::Shape& rows, WorkspaceLayout& layout)
    : counts(layout.Take<int64_t>(CudaRouteCounts::Words(s.knobs.leaves, s.knobs.experts))),
      words(layout.Take<int64_t>(ChunkTables::MaxWords(s))),
      first(layout.Take<int64_t>(s.knobs.experts + 1)),
      place(layout.Take<int64_t>(s.home_rows())),
      tiles(layout.Take<int32_t>(cuda::RouteTiles(s.home_rows()) * s.knobs.experts)),
      away_row(layout.Take<int64_t>(s.rows)),
      expert_at(layout.Take<int64_t>(s.rows)),
      gate_up_bias(TakeIf<float>(has.gate_up_bias, s.knobs.experts * 2 * s.layer.i, layout)),
      down_bias(TakeIf<float>(has.down_bias, s.knobs.experts * s.layer.h, layout)),
      dweights(TakeIf<float>(rows.pass == ExpertsPass::kBackward, s.rows, layout)),
      dispatch(s, LaneBytes(s, rows), rows.pass == ExpertsPass::kForward ? 1 : 2, layout),
      bank(s, PartBytes(s, has.weights), layout),
      partials(s.layer, s.foreign_slots > 0 ? has.gradients : ExpertGradients{}, layout),
      batch(rows, layout) {
  for (size_t set = 0; set < ChunkDispatch::Sets(s); ++set) {
    home.push_back({layout.Take<int64_t>(s.home_rows()), layout.Take<int64_t>(s.home_rows())});
  }
}

int64_t CudaDispatch::WorkspaceBytes(const Node& node, ExpertsPass pass) {
  const DispatchShape s(node);
  WorkspaceLayout layout(nullptr);
  float wanted = 0;
  const auto output = [&](size_t o) {
    return pass == ExpertsPass::kForward || node.out(o) == nullptr ? nullptr : &wanted;
  };
  const Has has{node.in(3)->dtype,
                node.in(5) != nullptr,
                node.in(6) != nullptr,
                {output(2), output(3), output(4), output(5)}};
  Buffers(s, has, BatchShape(s, node.in(0)->dtype, pass), layout);
  return layout.bytes();
}

CudaDispatch::CudaDispatch(KernelContext& c, ExpertsPass pass)
    : c_(c),
      pass_(pass),
      s_(c.attributes(), c.inputs[0].dims, c.inputs[1].dims, c.inputs[4].dims),
      dtype_(c.inputs[0].dtype),
      queue_(CudaQueue(c)),
      layout_(c.workspace.data()),
      out_(backward() ? CudaGradientOutputs(c) : ExpertGradients{}),
      b_(s_, {c.inputs[3].dtype, c.has(5), c.has(6), out_}, BatchShape(s_, dtype_, pass), layout_),
      counts_(Counts()) {
  b_.batch.Bind(queue_, c.inputs[3].dtype);
  b_.dispatch.Plan(c, counts_);
  tables_.emplace(s_, b_.dispatch.chunks(), b_.dispatch.rank());
  Upload(tables_->words(), b_.words);
  b_.bank.Start(b_.dispatch.communicator(), b_.dispatch.plan(),
                {c.inputs[3].bytes, c.inputs[4].bytes});
  StartBias(5, b_.gate_up_bias);
  StartBias(6, b_.down_bias);
}

void CudaDispatch::Upload(const std::vector<int64_t>& words, void* to) const {
  if (words.empty()) return;
  CheckCuda(cudaMemcpyAsync(to, words.data(), words.size() * sizeof(int64_t),
                            cudaMemcpyHostToDevice, queue_.stream),
            kWhere);
}

// Of all ranks: gathered in the forward pass, kept for the backward pass.
std::vector<int64_t> CudaDispatch::Counts() {
  const LlepKnobs& knobs = s_.knobs;
  Communicator& group = *ExpertGroup(c_, s_);
  const std::vector<int64_t> own =
      CudaRouteCounts::Count(c_.inputs[1], knobs.leaves, knobs.experts, b_.counts, queue_);
  std::vector<int64_t> all(static_cast<size_t>(s_.counts()));
  if (backward()) {
    CheckCuda(cudaMemcpyAsync(all.data(), c_.inputs[12].bytes, all.size() * sizeof(int64_t),
                              cudaMemcpyDeviceToHost, queue_.stream),
              kWhere);
    CheckCuda(cudaStreamSynchronize(queue_.stream), kWhere);
    const auto kept = all.begin() + group.rank() * std::ssize(own);
    WEIR_CHECK(std::equal(own.begin(), own.end(), kept), ErrorCode::kInternal, kWhere, " on rank ",
               group.rank(),
               " got other routes than the forward pass counted: routes are chosen once"
               " and kept");
    return all;
  }
  group.host().AllGather(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)),
                         {"GatherRouteCounts", c_.node.in(3)->name});
  Upload(all, c_.outputs[1].bytes);
  return all;
}

// Biases are small: every rank keeps those of all experts.
void CudaDispatch::StartBias(size_t input, float* all) {
  if (all == nullptr) return;
  const Tensor& own = c_.inputs[input];
  const int64_t bytes = own.size_bytes() / own.dims[0];
  std::vector<int64_t> held;
  for (int64_t rank = 0; rank < s_.knobs.ranks; ++rank)
    held.push_back(bytes * (s_.knobs.FirstExpert(rank + 1) - s_.knobs.FirstExpert(rank)));
  biases_.push_back(b_.dispatch.communicator()->StartAllGatherV(
      {own.bytes, static_cast<size_t>(own.size_bytes())},
      {reinterpret_cast<std::byte*>(all), static_cast<size_t>(bytes * s_.knobs.experts)}, held,
      {"GatherBiases", c_.node.in(input)->name}));
}

void CudaDispatch::Run() {
  b_.dispatch.Run(*this);
  WaitForWeights();
}

void CudaDispatch::WaitForWeights() {
  b_.bank.Wait();
  for (auto& ticket : biases_) b_.dispatch.communicator()->Wait(std::move(ticket));
  biases_.clear();
}

const ChunkTables::Chunk& CudaDispatch::TableOf(const ChunkBuffers& chunk) const {
  return tables_->chunks()[static_cast<size_t>(chunk.rows - b_.dispatch.chunks().data())];
}

cuda::RouteChunk CudaDispatch::RoutesOf(const ChunkBuffers& chunk) const {
  const ChunkTables::Chunk& table = TableOf(chunk);
  return {{s_.n, s_.knobs.leaves}, table.first, table.tokens, s_.k, s_.knobs.experts};
}

void CudaDispatch::Pack(ChunkBuffers& chunk) {
  const Home& home = b_.home[chunk.set];
  const ChunkTables::Runs& runs = TableOf(chunk).home;
  cuda::ExpandRuns(b_.words + runs.at, runs.count, b_.place, nullptr, queue_.stream);
  cuda::SortRoutes(c_.inputs[1].data<int64_t>(), RoutesOf(chunk),
                   {.first = b_.first,
                    .routes = home.routes,
                    .row_at = home.row_at,
                    .tiles = b_.tiles,
                    .place = runs.count == 0 ? nullptr : b_.place},
                   queue_.stream);
  const auto pack = [&](size_t lane, size_t input) {
    cuda::GatherRows(c_.inputs[input].bytes, home.routes, chunk.rows->home_rows, s_.k,
                     chunk.lanes[lane].row_bytes, chunk.lanes[lane].home, queue_.stream);
  };
  pack(kX, 0);
  if (!backward()) return;
  pack(kDy, 7);
  cuda::GatherFloats(Floats(2), home.routes, chunk.rows->home_rows,
                     reinterpret_cast<float*>(chunk.lanes[kWeight].home), queue_.stream);
}

void CudaDispatch::Unpack(ChunkBuffers& chunk) {
  const Home& home = b_.home[chunk.set];
  cuda::FoldSlots({.dtype = dtype_,
                   .h = s_.layer.h,
                   .home = chunk.lanes[kX].home,
                   .row_at = home.row_at,
                   .routes = home.routes,
                   .ids = c_.inputs[1].data<int64_t>(),
                   .weights = backward() ? nullptr : Floats(2),
                   .bias = backward() ? nullptr : b_.down_bias,
                   .out = c_.outputs[0].bytes},
                  RoutesOf(chunk), queue_.stream);
  if (!backward()) return;
  cuda::ScatterFloats(reinterpret_cast<const float*>(chunk.lanes[kWeight].home), home.routes,
                      chunk.rows->home_rows, c_.outputs[1].data<float>(), queue_.stream);
}

void CudaDispatch::Compute(ChunkBuffers& chunk, const std::function<void()>& halfway) {
  WaitForWeights();
  chunk_ = &chunk;
  const ChunkTables::Runs& runs = TableOf(chunk).away;
  cuda::ExpandRuns(b_.words + runs.at, runs.count, b_.away_row, b_.expert_at, queue_.stream);
  if (backward()) return Differentiate(halfway);
  const Units all(chunk.rows->units);
  RunBatches({&all, 1}, halfway, [&](Units batch) {
    Load(batch, kX, b_.batch.x());
    b_.batch.Forward(Experts(batch), RowsOf(batch));
    Store(batch);
  });
}

// Calls `halfway`, if any, before the second half of the batches.
void CudaDispatch::RunBatches(std::span<const Units> runs, const std::function<void()>& halfway,
                              const std::function<void(Units)>& run) {
  std::vector<Units> batches;
  for (const Units units : runs) {
    const auto cut = ChunkRows::CutBatches(units, batch_rows());
    batches.insert(batches.end(), cut.begin(), cut.end());
  }
  for (size_t b = 0; b < batches.size(); ++b) {
    if (halfway && b == batches.size() / 2) halfway();
    run(batches[b]);
  }
  if (halfway && batches.empty()) halfway();
}

// All ranks reach the same step with the same exchanges behind them.
void CudaDispatch::Differentiate(const std::function<void()>& halfway) {
  Communicator& group = *b_.dispatch.communicator();
  const auto steps = FoldSteps(s_.knobs, *chunk_->rows, b_.dispatch.rank(), kLeastRows);
  const auto add = [&](float* sum, const float* partial, int64_t floats) {
    cuda::Accumulate(sum, partial, floats, queue_.stream);
  };
  for (size_t s = 0; s < steps.size(); ++s) {
    const FoldStep& step = steps[s];
    const bool last = s + 1 == steps.size(), exchanges = !last && out_.any();
    if (s > 0 && s == steps.size() / 2) halfway();
    if (step.helped != nullptr) HelpOwner(*step.helped);
    if (exchanges) {
      b_.partials.WaitRound(group);
      b_.partials.StartRound(group, step.owner, step.helper());
    }
    RunBatches(step.own, steps.size() == 1 ? halfway : nullptr,
               [&](Units batch) { Backward(batch, UnitsOf(batch), out_); });
    if (exchanges && step.awaited != nullptr) {
      b_.partials.WaitRound(group);
      b_.partials.AddIncoming(out_, step.awaited->expert - b_.bank.first(), add);
    }
  }
  b_.partials.WaitRound(group);
  const Lane& weights = chunk_->lanes[kWeight];
  if (chunk_->rows->away_rows == 0) return;
  CheckCuda(cudaMemcpyAsync(weights.away, b_.dweights,
                            static_cast<size_t>(chunk_->rows->away_rows * weights.row_bytes),
                            cudaMemcpyDeviceToDevice, queue_.stream),
            kWhere);
}

// The partial that went out in the round before leaves its buffer while this unit's rows compute.
void CudaDispatch::HelpOwner(const ChunkRows::Unit& unit) {
  UnitBatch units = UnitsOf({&unit, 1});
  units.run.first = nullptr;
  Backward({&unit, 1}, units, out_.any() ? b_.partials.outgoing() : ExpertGradients{});
}

// x, dy and the router's weights of whole units become dx and dweights; their weight gradients are
// added to `out`, or replace the outgoing partial.
void CudaDispatch::Backward(Units batch, const UnitBatch& units, const ExpertGradients& out) {
  const float* weights = reinterpret_cast<const float*>(chunk_->lanes[kWeight].away);
  const std::vector<ExpertRange> experts = Experts(batch);
  const CudaExpertBatch::Rows rows = RowsOf(batch);
  Load(batch, kX, b_.batch.x());
  Load(batch, kDy, b_.batch.dy());
  b_.batch.Differentiate(experts, rows, weights, b_.dweights);
  if (units.run.first == nullptr && out.any()) ClearOutgoing();
  b_.batch.SumWeightGradients(units, {weights, rows.routes}, out);
  b_.batch.InputGradient(experts);
  Store(batch);
}

void CudaDispatch::ClearOutgoing() {
  b_.partials.WaitRound(*b_.dispatch.communicator());
  const std::span<float> floats = b_.partials.outgoing_floats();
  CheckCuda(cudaMemsetAsync(floats.data(), 0, floats.size_bytes(), queue_.stream), kWhere);
}

UnitBatch CudaDispatch::UnitsOf(Units batch) const {
  const ChunkTables::Chunk& table = TableOf(*chunk_);
  const int64_t begin = batch.data() - chunk_->rows->units.data();
  const cuda::UnitRun run{.row = b_.words + table.table.row,
                          .first = b_.words + table.table.first,
                          .experts = c_.inputs[3].dims[0],
                          .begin = begin,
                          .end = begin + std::ssize(batch),
                          .origin = batch.front().first};
  return {run, std::span(table.units).subspan(static_cast<size_t>(begin), batch.size())};
}

void CudaDispatch::Load(Units batch, size_t lane, std::byte* to) {
  cuda::GatherRows(chunk_->lanes[lane].away, b_.away_row + batch.front().first, RowsIn(batch), 1,
                   chunk_->lanes[lane].row_bytes, to, queue_.stream);
}

void CudaDispatch::Store(Units batch) {
  cuda::ScatterRows(b_.batch.x(), b_.away_row + batch.front().first, RowsIn(batch),
                    chunk_->lanes[kX].row_bytes, chunk_->lanes[kX].away, queue_.stream);
}

std::vector<ExpertRange> CudaDispatch::Experts(Units batch) const {
  std::vector<ExpertRange> experts;
  const int64_t first = batch.front().first;
  for (const RowBlock& block : ChunkRows::CutBlocks(batch, RowsIn(batch))) {
    experts.push_back({block.begin - first, block.end - first, b_.bank.Part(block.expert, 0),
                       b_.bank.Part(block.expert, 1)});
  }
  return experts;
}

CudaExpertBatch::Rows CudaDispatch::RowsOf(Units batch) const {
  return {.count = RowsIn(batch),
          .ids = b_.expert_at,
          .routes = b_.away_row + batch.front().first,
          .gate_up_bias = b_.gate_up_bias,
          .down_bias = b_.down_bias};
}

}  // namespace weir
