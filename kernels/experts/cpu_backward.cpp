#include "backend/cpu/parallel.h"
#include "kernels/common/parallel_tasks.h"
#include "kernels/experts/cpu.h"

namespace weir {
namespace {

constexpr int64_t kBatchRows = 1024;  // rows whose intermediates live at once

// Whole units only: a unit longer than kBatchRows makes its own batch.
int64_t BatchRows(const ExpertsShape& s) {
  const int64_t longest_unit = std::min(s.unit_rows, s.LeafTokens() * s.k);
  return std::min(s.ChunkRoutes(), std::max(kBatchRows, longest_unit));
}

ExpertLayer LayerOf(const Attributes& attributes, const ExpertsShape& s) {
  return {s.h, s.i, ExpertActivation(attributes)};
}

struct Workspace {
  ChunkRouting routing;
  RowBlock* blocks;
  BackwardRowBuffers batch;
  float* home;  // dx rows of the chunk, un-reduced

  Workspace(const ExpertsShape& s, WorkspaceLayout& layout)
      : routing(s, layout),
        blocks(layout.Take<RowBlock>(ChunkRouting::MaxBlocks(s, kBlockRows))),
        batch(TakeRowBuffers(layout, s.h, s.i, BatchRows(s))),
        home(layout.Take<float>(s.ChunkRoutes() * s.h)) {}
};

int64_t ExpertsGradientWorkspace(const Node& node) {
  const ExpertsShape s(node);
  WorkspaceLayout layout(nullptr);
  Workspace(s, layout);
  layout.Take<float>(CpuThreads() * UnitScratchFloats(LayerOf(node.attributes, s)));
  return layout.bytes();
}

class Backward {
 public:
  explicit Backward(KernelContext& c)
      : s_(c.attributes(), c.inputs[0].dims, c.inputs[1].dims, c.inputs[4].dims),
        layer_(LayerOf(c.attributes(), s_)),
        in_(c),
        dy_(c.inputs[7].data<float>()),
        dx_(c.outputs[0].data<float>()),
        dweights_(c.outputs[1].data<float>()),
        out_(GradientOutputs(c)),
        layout_(c.workspace.data()),
        w_(s_, layout_),
        scratch_(TakeRest<float>(layout_, c.workspace)) {}
  void Run();

 private:
  int64_t EndOfBatch(int64_t begin) const;
  void RunBlock(int64_t batch, const RowBlock& block);

  const ExpertsShape s_;
  const ExpertLayer layer_;
  const ExpertsInputs in_;
  const float* dy_;
  float *dx_, *dweights_;
  const ExpertGradients out_;
  WorkspaceLayout layout_;
  Workspace w_;
  std::span<float> scratch_;
};

void Backward::Run() {
  CheckExpertIds(in_.ids, s_.n, s_.k, s_.e);
  for (int64_t leaf = 0; leaf < s_.leaves; leaf += s_.LeavesPerChunk()) {
    w_.routing.Build(in_.ids, leaf);
    for (int64_t begin = 0, end; begin < w_.routing.rows(); begin = end) {
      end = EndOfBatch(begin);
      int64_t blocks = w_.routing.CutBlocks(begin, end, kBlockRows, w_.blocks);
      ForEachTask(blocks, CpuThreads(),
                  [&](int64_t, int64_t task) { RunBlock(begin, w_.blocks[task]); });
      blocks = w_.routing.CutBlocks(begin, end, end - begin, w_.blocks);
      SumWeightGradients(layer_, {w_.batch, begin, w_.routing.unit_ends()},
                         {w_.blocks, static_cast<size_t>(blocks)}, UnitSum::kAdd, out_, scratch_);
    }
    FoldSlots(w_.routing.slots(), s_.h, w_.home, nullptr, dx_);
  }
}

// As many whole units as fit.
int64_t Backward::EndOfBatch(int64_t begin) const {
  const int64_t limit = begin + BatchRows(s_);
  int64_t end = begin;
  while (end < w_.routing.rows() && w_.routing.unit_ends()[end] <= limit) {
    end = w_.routing.unit_ends()[end];
  }
  return end;
}

// The block's dweights, home rows of dx, and what dW needs.
void Backward::RunBlock(int64_t batch, const RowBlock& block) {
  const BackwardRowBuffers rows = w_.batch.From(layer_, block.begin - batch);
  w_.routing.GatherTokens(block, in_.x, s_.h, rows.x);
  w_.routing.GatherTokens(block, dy_, s_.h, rows.dy);
  BackwardRows(layer_, in_.Expert(layer_, block.expert), block.size(), rows,
               w_.routing.routes() + block.begin, in_.weights, dweights_,
               w_.home + block.begin * s_.h);
}

void LaunchExpertsGradient(KernelContext& c) { Backward(c).Run(); }

}  // namespace

const Kernel& ExpertsGradientCpuKernel() {
  static const Kernel kernel{.launch = LaunchExpertsGradient,
                             .workspace_bytes = ExpertsGradientWorkspace};
  return kernel;
}

}  // namespace weir
