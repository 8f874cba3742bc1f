#include "kernels/pipelined_llep/cuda_dispatch.h"

#include <algorithm>

#include "backend/cuda/cuda_error.h"
#include "kernels/accumulate/cuda.h"
#include "kernels/experts/cuda_layer.h"
#include "kernels/pipelined_llep/cuda.h"

namespace weir {
namespace {

constexpr int64_t kCudaBatchRows = 16384;  // rows whose intermediates live at once
constexpr int64_t kLeastRows = 4096;       // worth a batch of its own
constexpr const char* kWhere = "PipelinedLlep";

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
      expert_at(layout.Take<int64_t>(s.rows)),
      gate_up_bias(TakeIf<float>(has.gate_up_bias, s.knobs.experts * 2 * s.layer.i, layout)),
      down_bias(TakeIf<float>(has.down_bias, s.knobs.experts * s.layer.h, layout)),
      dweights(TakeIf<float>(rows.pass == ExpertsPass::kBackward, s.rows, layout)),
      bank(s, PartBytes(s, has.weights), layout),
      partials(s.layer, s.foreign_slots > 0 ? has.gradients : ExpertGradients{}, layout),
      batch(rows, layout) {
  const bool backward = rows.pass == ExpertsPass::kBackward;
  const int64_t all = s.home_rows() + s.rows, bytes = BytesOf(rows.dtype, all * s.layer.h);
  for (size_t set = 0; set < BufferSets(s); ++set) {
    sets.push_back({.routes = layout.Take<int64_t>(all),
                    .row_at = layout.Take<int64_t>(s.home_rows()),
                    .x = layout.Take<std::byte>(bytes),
                    .dy = TakeIf<std::byte>(backward, bytes, layout),
                    .weights = TakeIf<float>(backward, all, layout)});
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
  [[maybe_unused]] const Buffers taken(s, has, BatchShape(s, node.in(0)->dtype, pass), layout);
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
      counts_(Counts()),
      plan_(c, s_, counts_) {
  b_.batch.Bind(queue_, c.inputs[3].dtype);
  tables_.emplace(s_, plan_.chunks(), plan_.rank(),
                  backward() ? RowOrder::kCanonical : RowOrder::kBySource);
  Upload(tables_->words(), b_.words);
  b_.bank.Start(plan_.group(), plan_.plan(), {c.inputs[3].bytes, c.inputs[4].bytes});
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
  biases_.push_back(plan_.group()->StartAllGatherV(
      {own.bytes, static_cast<size_t>(own.size_bytes())},
      {reinterpret_cast<std::byte*>(all), static_cast<size_t>(bytes * s_.knobs.experts)}, held,
      {"GatherBiases", c_.node.in(input)->name}));
}

void CudaDispatch::Run() {
  RunChunks(plan_.chunks().size(), b_.sets.size(), *this);
  WaitForWeights();
}

void CudaDispatch::WaitForWeights() {
  b_.bank.Wait();
  for (auto& ticket : biases_) plan_.group()->Wait(std::move(ticket));
  biases_.clear();
}

cuda::RouteChunk CudaDispatch::RoutesOf(size_t chunk) const {
  const ChunkTables::Chunk& table = TableOf(chunk);
  return {{s_.n, s_.knobs.leaves}, table.first, table.tokens, s_.k, s_.knobs.experts};
}

cuda::SlotPlaces CudaDispatch::SlotsOf(size_t chunk) {
  return {TableOf(chunk).tokens, s_.k, SetOf(chunk).row_at, SetOf(chunk).routes};
}

void CudaDispatch::Exchange(size_t chunk, Way way, std::byte* rows, int64_t row_bytes) {
  const bool arrival = way == Way::kArrival;
  const auto bytes = [&](const RowMessage& m) {
    return std::span(rows + m.row * row_bytes, static_cast<size_t>(m.rows * row_bytes));
  };
  for (const RowExchange& exchange : TableOf(chunk).exchanges) {
    std::vector<Communicator::Outgoing> send;
    std::vector<Communicator::Incoming> receive;
    for (const RowMessage& m : arrival ? exchange.leaving : exchange.coming)
      send.push_back({m.peer, bytes(m)});
    for (const RowMessage& m : arrival ? exchange.coming : exchange.leaving)
      receive.push_back({m.peer, bytes(m)});
    SetOf(chunk).tickets.push_back(plan_.group()->StartExchange(
        send, receive, {arrival ? "DispatchRows" : "ReturnRows", plan_.tensor()}));
  }
}

void CudaDispatch::Wait(Set& set) {
  for (auto& ticket : set.tickets) plan_.group()->Wait(std::move(ticket));
  set.tickets.clear();
}

void CudaDispatch::Begin(size_t chunk) {
  const Set& set = SetOf(chunk);
  const ChunkTables::Runs& runs = TableOf(chunk).place;
  cuda::ExpandRuns(b_.words + runs.at, runs.count, b_.place, nullptr, queue_.stream);
  cuda::SortRoutes(c_.inputs[1].data<int64_t>(), RoutesOf(chunk),
                   {.first = b_.first,
                    .routes = set.routes,
                    .row_at = set.row_at,
                    .tiles = b_.tiles,
                    .place = b_.place},
                   queue_.stream);
  const cuda::SlotPlaces slots = SlotsOf(chunk);
  cuda::PackRows(slots, c_.inputs[0].bytes, row_bytes(), set.x, queue_.stream);
  if (backward()) {
    cuda::PackRows(slots, c_.inputs[7].bytes, row_bytes(), set.dy, queue_.stream);
    cuda::PackSlots(slots, Floats(2), set.weights, queue_.stream);
  }
  Exchange(chunk, Way::kArrival, set.x, row_bytes());
  if (!backward()) return;
  Exchange(chunk, Way::kArrival, set.dy, row_bytes());
  Exchange(chunk, Way::kArrival, reinterpret_cast<std::byte*>(set.weights), sizeof(float));
}

void CudaDispatch::End(size_t chunk) {
  Set& set = SetOf(chunk);
  Wait(set);
  cuda::FoldSlots({.dtype = dtype_,
                   .h = s_.layer.h,
                   .home = set.x,
                   .row_at = set.row_at,
                   .routes = set.routes,
                   .ids = c_.inputs[1].data<int64_t>(),
                   .weights = backward() ? nullptr : Floats(2),
                   .bias = backward() ? nullptr : b_.down_bias,
                   .out = c_.outputs[0].bytes},
                  RoutesOf(chunk), queue_.stream);
  if (backward())
    cuda::UnpackSlots(SlotsOf(chunk), set.weights, c_.outputs[1].data<float>(), queue_.stream);
}

void CudaDispatch::Compute(size_t chunk, const std::function<void()>& halfway) {
  WaitForWeights();
  chunk_ = chunk;
  Set& set = SetOf(chunk);
  Wait(set);
  const ChunkTables::Runs& experts = TableOf(chunk).experts;
  cuda::ExpandRuns(b_.words + experts.at, experts.count, nullptr, b_.expert_at, queue_.stream);
  if (backward()) {
    Differentiate(chunk, halfway);
  } else {
    const Units all(plan_.chunks()[chunk].units);
    RunBatches({&all, 1}, halfway,
               [&](Units batch) { b_.batch.Forward(Experts(batch), RowsOf(batch)); });
  }
  Exchange(chunk, Way::kReturn, set.x, row_bytes());
  if (backward())
    Exchange(chunk, Way::kReturn, reinterpret_cast<std::byte*>(set.weights), sizeof(float));
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
void CudaDispatch::Differentiate(size_t chunk, const std::function<void()>& halfway) {
  Communicator& group = *plan_.group();
  const ChunkRows& rows = plan_.chunks()[chunk];
  const auto steps = FoldSteps(s_.knobs, rows, plan_.rank(), kLeastRows);
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
  if (rows.away_rows == 0) return;
  CheckCuda(cudaMemcpyAsync(SetOf(chunk).weights + s_.home_rows(), b_.dweights,
                            static_cast<size_t>(rows.away_rows) * sizeof(float),
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
  const std::vector<ExpertRange> experts = Experts(batch);
  const CudaExpertBatch::Rows rows = RowsOf(batch);
  b_.batch.Differentiate(experts, rows, b_.dweights + batch.front().first);
  if (units.run.first == nullptr && out.any()) ClearOutgoing();
  b_.batch.SumWeightGradients(units, rows, out);
  b_.batch.InputGradient(experts, rows);
}

void CudaDispatch::ClearOutgoing() {
  b_.partials.WaitRound(*plan_.group());
  const std::span<float> floats = b_.partials.outgoing_floats();
  CheckCuda(cudaMemsetAsync(floats.data(), 0, floats.size_bytes(), queue_.stream), kWhere);
}

UnitBatch CudaDispatch::UnitsOf(Units batch) const {
  const ChunkTables::Chunk& table = TableOf(chunk_);
  const int64_t begin = batch.data() - plan_.chunks()[chunk_].units.data();
  const cuda::UnitRun run{.row = b_.words + table.table.row,
                          .first = b_.words + table.table.first,
                          .experts = c_.inputs[3].dims[0],
                          .begin = begin,
                          .end = begin + std::ssize(batch),
                          .origin = batch.front().first};
  return {run, std::span(table.units).subspan(static_cast<size_t>(begin), batch.size())};
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

CudaExpertBatch::Rows CudaDispatch::RowsOf(Units batch) {
  const Set& set = SetOf(chunk_);
  const int64_t first = batch.front().first, row = s_.home_rows() + first;
  return {.count = RowsIn(batch),
          .x = set.x + row * row_bytes(),
          .dy = backward() ? set.dy + row * row_bytes() : nullptr,
          .ids = b_.expert_at + first,
          .routes = nullptr,
          .gate_up_bias = b_.gate_up_bias,
          .down_bias = b_.down_bias,
          .weights = backward() ? set.weights + row : nullptr};
}

}  // namespace weir
