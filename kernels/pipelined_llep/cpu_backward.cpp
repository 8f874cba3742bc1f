#include <algorithm>
#include <utility>

#include "backend/cpu/parallel.h"
#include "kernels/common/parallel_tasks.h"
#include "kernels/common/vector_loops.h"
#include "kernels/pipelined_llep/cpu_buffers.h"
#include "kernels/pipelined_llep/fold_steps.h"
#include "kernels/pipelined_llep/partials.h"
#include "kernels/pipelined_llep/row_copies.h"

namespace weir {
namespace {

constexpr int64_t kBatchRows = 1024;            // rows whose intermediates live at once
constexpr size_t kX = 0, kWeight = 1, kDy = 2;  // lanes; x and weight return as dx and dweight

// Whole units only: a unit longer than kBatchRows makes its own batch.
int64_t BatchRows(const DispatchShape& s) {
  return std::min(s.rows, std::max(kBatchRows, UnitRowBound(s.knobs)));
}

// One block's dx, or one unit's partial; every thread at work holds one.
int64_t ScratchFloats(const DispatchShape& s) {
  return std::max(kBlockRows * s.layer.h, UnitScratchFloats(s.layer));
}

std::vector<int64_t> LaneBytes(const DispatchShape& s) {
  return {s.layer.h * kFloatBytes, kFloatBytes, s.layer.h * kFloatBytes};
}

void AddPartial(float* sum, const float* partial, int64_t floats) {
  ParallelFor(floats, 4096, [&](int64_t begin, int64_t end) {
    AddTo(partial + begin, end - begin, sum + begin);
  });
}

struct Workspace {
  ChunkDispatch dispatch;
  std::vector<ChunkRoutes> routes;  // of each set of buffers
  ExpertBank bank;
  PartialExchange partials;
  BackwardRowBuffers batch;

  Workspace(const DispatchShape& s, bool gate_up_bias, bool down_bias, const ExpertGradients& out,
            WorkspaceLayout& layout)
      : dispatch(s, LaneBytes(s), /*returned_lanes=*/2, layout),
        routes(MakeRoutes(s, layout)),
        bank(s, ExpertPartBytes(s.layer, gate_up_bias, down_bias), layout),
        partials(s.layer, s.foreign_slots > 0 ? out : ExpertGradients{}, layout),
        batch(TakeRowBuffers(layout, s.layer.h, s.layer.i, BatchRows(s))) {}
};

int64_t PipelinedLlepGradientWorkspace(const Node& node) {
  const DispatchShape s(node);
  WorkspaceLayout layout(nullptr);
  float wanted = 0;
  const auto output = [&](size_t i) { return node.out(i) == nullptr ? nullptr : &wanted; };
  [[maybe_unused]] const Workspace taken(s, node.in(5) != nullptr, node.in(6) != nullptr,
                                         {output(2), output(3), output(4), output(5)}, layout);
  layout.Take<float>(CpuThreads() * ScratchFloats(s));
  return layout.bytes();
}

class Backward : public ChunkJob {
 public:
  using Units = std::span<const ChunkRows::Unit>;

  explicit Backward(KernelContext& c)
      : s_(c.attributes(), c.inputs[0].dims, c.inputs[1].dims, c.inputs[4].dims),
        in_(c),
        dy_(c.inputs[7].data<float>()),
        dx_(c.outputs[0].data<float>()),
        dweights_(c.outputs[1].data<float>()),
        out_(GradientOutputs(c)),
        layout_(c.workspace.data()),
        w_(s_, c.has(5), c.has(6), out_, layout_),
        scratch_(TakeRest<float>(layout_, c.workspace)) {
    CheckExpertIds(in_.ids, s_.n, s_.k, s_.knobs.experts);
    const std::span counts(c.inputs[12].data<int64_t>(), static_cast<size_t>(s_.counts()));
    w_.dispatch.Plan(c, counts);
    w_.bank.Start(w_.dispatch.communicator(), w_.dispatch.plan(), ExpertParts(in_));
  }

  void Run() {
    w_.dispatch.Run(*this);
    w_.bank.Wait();
  }

  void Pack(ChunkBuffers& chunk) override {
    ChunkRoutes& routes = w_.routes[chunk.set];
    routes.Build(*chunk.rows, in_.ids);
    PackTokens(routes.slots(), in_.x, chunk.lanes[kX]);
    PackTokens(routes.slots(), dy_, chunk.lanes[kDy]);
    PackSlots(routes.slots(), in_.weights, chunk.lanes[kWeight]);
  }
  void Compute(ChunkBuffers& chunk, const std::function<void()>& halfway) override;
  void Unpack(ChunkBuffers& chunk) override {
    const SlotRows slots = w_.routes[chunk.set].slots();
    FoldSlots(slots, s_.layer.h, Home(chunk.lanes[kX]), nullptr, dx_);
    UnpackSlots(slots, chunk.lanes[kWeight], dweights_);
  }

 private:
  void RunRows(Units units);
  void RunBlock(const RowBlock& block, int64_t first, float* dx);
  void HelpOwner(Units unit);
  void FoldOwn(Units units);
  void CountRows(int64_t rows);
  const ChunkRoutes& routes() const { return w_.routes[chunk_->set]; }

  const DispatchShape s_;
  const ExpertsInputs in_;
  const float* dy_;
  float *dx_, *dweights_;
  const ExpertGradients out_;
  WorkspaceLayout layout_;
  Workspace w_;
  std::span<float> scratch_;

  // Of the chunk at hand.
  ChunkBuffers* chunk_ = nullptr;
  const std::function<void()>* halfway_ = nullptr;  // until called
  int64_t rows_done_ = 0;
};

// Without weight gradients rounds move nothing.
void Backward::Compute(ChunkBuffers& chunk, const std::function<void()>& halfway) {
  w_.bank.Wait();
  chunk_ = &chunk;
  halfway_ = &halfway;
  rows_done_ = 0;
  Communicator* group = w_.dispatch.communicator();
  for (const FoldStep& step : FoldSteps(s_.knobs, *chunk.rows, w_.dispatch.rank(), kBatchRows)) {
    const bool sends = step.helped != nullptr && out_.any();
    const bool receives = step.awaited != nullptr && out_.any();
    if (receives) w_.partials.StartReceive(*group, step.helper());
    if (step.helped != nullptr) HelpOwner({step.helped, 1});
    if (sends) w_.partials.StartSend(*group, step.owner);
    for (const Units units : step.own) FoldOwn(units);
    if (receives) {
      w_.partials.WaitAndAdd(*group, out_, step.awaited->expert - w_.bank.first(), AddPartial);
    }
    if (sends) w_.partials.WaitSend(*group);
  }
  if (halfway_ != nullptr) halfway();
}

void Backward::CountRows(int64_t rows) {
  rows_done_ += rows;
  if (halfway_ == nullptr || 2 * rows_done_ < chunk_->rows->away_rows) return;
  (*std::exchange(halfway_, nullptr))();
}

void Backward::HelpOwner(Units unit) {
  RunRows(unit);
  if (!out_.any()) return;
  const RowBlock block{0, unit[0].first, unit[0].end()};
  SumWeightGradients(s_.layer, {w_.batch, block.begin, routes().unit_end()}, {&block, 1},
                     UnitSum::kSet, w_.partials.outgoing(), scratch_);
}

void Backward::FoldOwn(Units units) {
  const int64_t most = BatchRows(s_);
  for (const Units batch : ChunkRows::CutBatches(units, most)) {
    RunRows(batch);
    if (!out_.any()) continue;
    std::vector<RowBlock> blocks = ChunkRows::CutBlocks(batch, most);
    for (RowBlock& block : blocks) block.expert -= w_.bank.first();
    SumWeightGradients(s_.layer, {w_.batch, batch[0].first, routes().unit_end()}, blocks,
                       UnitSum::kAdd, out_, scratch_);
  }
}

// dx and dweight of consecutive units in their away lanes, and what their weight gradients need.
void Backward::RunRows(Units units) {
  const std::vector<RowBlock> blocks = ChunkRows::CutBlocks(units, kBlockRows);
  const int64_t floats = ScratchFloats(s_);
  ForEachTask(std::ssize(blocks), std::ssize(scratch_) / floats, [&](int64_t slot, int64_t task) {
    RunBlock(blocks[static_cast<size_t>(task)], units[0].first, scratch_.data() + slot * floats);
  });
  CountRows(units.back().end() - units[0].first);
}

void Backward::RunBlock(const RowBlock& block, int64_t first, float* dx) {
  const BackwardRowBuffers rows = w_.batch.From(s_.layer, block.begin - first);
  const int64_t* at = routes().away_row() + block.begin;
  const auto& lanes = chunk_->lanes;
  GatherRows(Away(lanes[kX]), s_.layer.h, at, block.size(), rows.x);
  GatherRows(Away(lanes[kDy]), s_.layer.h, at, block.size(), rows.dy);
  BackwardRows(s_.layer, FindExpert(w_.bank, in_, block.expert), block.size(), rows, at,
               Away(lanes[kWeight]), Away(lanes[kWeight]), dx);
  ScatterRows(dx, s_.layer.h, at, block.size(), Away(lanes[kX]));
}

void LaunchPipelinedLlepGradient(KernelContext& c) { Backward(c).Run(); }

}  // namespace

const Kernel& PipelinedLlepGradientCpuKernel() {
  static const Kernel kernel{.launch = LaunchPipelinedLlepGradient,
                             .workspace_bytes = PipelinedLlepGradientWorkspace};
  return kernel;
}

}  // namespace weir
