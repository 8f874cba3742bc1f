#include <algorithm>
#include <tuple>
#include <utility>

#include "backend/cpu/parallel.h"
#include "kernels/common/parallel_tasks.h"
#include "kernels/pipelined_llep/dispatch.h"
#include "kernels/pipelined_llep/foreign_experts.h"
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

struct Workspace {
  ChunkDispatch dispatch;
  ExpertBank bank;
  PartialExchange partials;
  BackwardRowBuffers batch;

  Workspace(const DispatchShape& s, bool gate_up_bias, bool down_bias, const ExpertGradients& out,
            WorkspaceLayout& layout)
      : dispatch(s, std::vector<int64_t>{s.layer.h, 1, s.layer.h}, /*returned_lanes=*/2, layout),
        bank(s, gate_up_bias, down_bias, layout),
        partials(s.layer, s.foreign_slots > 0 ? out : ExpertGradients{}, layout),
        batch(TakeRowBuffers(layout, s.layer.h, s.layer.i, BatchRows(s))) {}
};

int64_t PipelinedLlepGradientWorkspace(const Node& node) {
  const DispatchShape s(node);
  WorkspaceLayout layout(nullptr);
  float wanted = 0;
  const auto output = [&](size_t i) { return node.out(i) == nullptr ? nullptr : &wanted; };
  Workspace(s, node.in(5) != nullptr, node.in(6) != nullptr,
            {output(2), output(3), output(4), output(5)}, layout);
  layout.Take<float>(CpuThreads() * ScratchFloats(s));
  return layout.bytes();
}

class Backward : public ChunkJob {
 public:
  using Units = std::span<const ChunkRoutes::Unit>;

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
    w_.dispatch.Plan(c, counts, in_.ids);
    w_.bank.Start(w_.dispatch.communicator(), w_.dispatch.plan(), in_);
  }

  void Run() {
    w_.dispatch.Run(*this);
    w_.bank.Wait();
  }

  void Pack(ChunkBuffers& chunk) override {
    PackTokens(chunk.routes.slots(), in_.x, chunk.lanes[kX]);
    PackTokens(chunk.routes.slots(), dy_, chunk.lanes[kDy]);
    PackSlots(chunk.routes.slots(), in_.weights, chunk.lanes[kWeight]);
  }
  void Compute(ChunkBuffers& chunk, const std::function<void()>& halfway) override;
  void Unpack(ChunkBuffers& chunk) override {
    FoldSlots(chunk.routes.slots(), s_.layer.h, chunk.lanes[kX].home, nullptr, dx_);
    UnpackSlots(chunk.routes.slots(), chunk.lanes[kWeight], dweights_);
  }

 private:
  void RunRows(Units units);
  void RunBlock(const RowBlock& block, int64_t first, float* dx);
  void HelpOwner(Units unit);
  Units FoldOwn(Units units, const LlepUnit* before);
  void CountRows(int64_t rows);

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

bool Before(const LlepUnit& a, const LlepUnit& b) {
  return std::tie(a.expert, a.leaf, a.begin) < std::tie(b.expert, b.leaf, b.begin);
}

// Each round brings at most one partial from a helper and takes at most one to an owner; before a
// partial is added, this rank's own units that precede it are. Without weight gradients rounds move
// nothing.
void Backward::Compute(ChunkBuffers& chunk, const std::function<void()>& halfway) {
  w_.bank.Wait();
  chunk_ = &chunk;
  halfway_ = &halfway;
  rows_done_ = 0;
  const LlepChunk& plan = chunk.routes.chunk();
  const Units all(chunk.routes.units());
  std::vector<Units> helped(static_cast<size_t>(plan.rounds));
  std::vector<const LlepUnit*> awaited(static_cast<size_t>(plan.rounds));
  size_t own_begin = all.size(), own_end = 0;
  for (size_t u = 0; u < all.size(); ++u) {
    if (all[u].unit->round >= 0) {
      helped[static_cast<size_t>(all[u].unit->round)] = all.subspan(u, 1);
    } else {
      own_begin = std::min(own_begin, u);
      own_end = u + 1;
    }
  }
  for (const LlepUnit& unit : plan.units) {
    if (unit.round >= 0 && w_.bank.Owns(unit.expert))
      awaited[static_cast<size_t>(unit.round)] = &unit;
  }
  Units own = own_begin < own_end ? all.subspan(own_begin, own_end - own_begin) : Units();
  Communicator* group = w_.dispatch.communicator();
  for (size_t round = 0; round < helped.size(); ++round) {
    const bool sends = !helped[round].empty() && out_.any();
    const bool receives = awaited[round] != nullptr && out_.any();
    if (receives) w_.partials.StartReceive(*group, awaited[round]->rank);
    if (!helped[round].empty()) HelpOwner(helped[round]);
    if (sends) {
      w_.partials.StartSend(*group, s_.knobs.Owner(helped[round][0].unit->expert));
    }
    if (receives) {
      own = FoldOwn(own, awaited[round]);
      w_.partials.WaitAndAdd(*group, out_, awaited[round]->expert - w_.bank.first());
    }
    if (sends) w_.partials.WaitSend(*group);
  }
  FoldOwn(own, nullptr);
  if (halfway_ != nullptr) halfway();
}

void Backward::CountRows(int64_t rows) {
  rows_done_ += rows;
  if (halfway_ == nullptr || 2 * rows_done_ < chunk_->routes.away_rows()) return;
  (*std::exchange(halfway_, nullptr))();
}

void Backward::HelpOwner(Units unit) {
  RunRows(unit);
  if (!out_.any()) return;
  const RowBlock block{0, unit[0].first, unit[0].end()};
  SumWeightGradients(s_.layer, {w_.batch, block.begin, chunk_->routes.unit_end()}, {&block, 1},
                     UnitSum::kSet, w_.partials.outgoing(), scratch_);
}

// Batches of whole units, up to a unit that others compute; hands back the rest.
Backward::Units Backward::FoldOwn(Units units, const LlepUnit* before) {
  const int64_t most = BatchRows(s_);
  while (!units.empty() && (before == nullptr || Before(*units[0].unit, *before))) {
    size_t count = 1;
    while (count < units.size() && units[count].end() - units[0].first <= most &&
           (before == nullptr || Before(*units[count].unit, *before))) {
      ++count;
    }
    const Units batch = units.first(count);
    RunRows(batch);
    if (out_.any()) {
      std::vector<RowBlock> blocks = ChunkRoutes::CutBlocks(batch, most);
      for (RowBlock& block : blocks) block.expert -= w_.bank.first();
      SumWeightGradients(s_.layer, {w_.batch, batch[0].first, chunk_->routes.unit_end()}, blocks,
                         UnitSum::kAdd, out_, scratch_);
    }
    units = units.subspan(count);
  }
  return units;
}

// dx and dweight of consecutive units in their away lanes, and what their weight gradients need.
void Backward::RunRows(Units units) {
  const std::vector<RowBlock> blocks = ChunkRoutes::CutBlocks(units, kBlockRows);
  const int64_t floats = ScratchFloats(s_);
  ForEachTask(std::ssize(blocks), std::ssize(scratch_) / floats, [&](int64_t slot, int64_t task) {
    RunBlock(blocks[static_cast<size_t>(task)], units[0].first, scratch_.data() + slot * floats);
  });
  CountRows(units.back().end() - units[0].first);
}

void Backward::RunBlock(const RowBlock& block, int64_t first, float* dx) {
  const BackwardRowBuffers rows = w_.batch.From(s_.layer, block.begin - first);
  const int64_t* at = chunk_->routes.away_row() + block.begin;
  const auto& lanes = chunk_->lanes;
  GatherRows(lanes[kX].away, s_.layer.h, at, block.size(), rows.x);
  GatherRows(lanes[kDy].away, s_.layer.h, at, block.size(), rows.dy);
  BackwardRows(s_.layer, w_.bank.Find(block.expert), block.size(), rows, at, lanes[kWeight].away,
               lanes[kWeight].away, dx);
  ScatterRows(dx, s_.layer.h, at, block.size(), lanes[kX].away);
}

void LaunchPipelinedLlepGradient(KernelContext& c) { Backward(c).Run(); }

}  // namespace

const Kernel& PipelinedLlepGradientCpuKernel() {
  static const Kernel kernel{.launch = LaunchPipelinedLlepGradient,
                             .workspace_bytes = PipelinedLlepGradientWorkspace};
  return kernel;
}

}  // namespace weir
