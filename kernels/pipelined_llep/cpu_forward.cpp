#include "backend/cpu/parallel.h"
#include "kernels/common/parallel_tasks.h"
#include "kernels/pipelined_llep/cpu_buffers.h"
#include "kernels/pipelined_llep/row_copies.h"

namespace weir {
namespace {

// Buffers of one block of rows; every thread at work holds one.
struct BlockBuffers {
  float *x, *gate_up, *a;
  BlockBuffers(const ExpertLayer& layer, WorkspaceLayout layout)
      : x(layout.Take<float>(kBlockRows * layer.h)),
        gate_up(layout.Take<float>(kBlockRows * 2 * layer.i)),
        a(layout.Take<float>(kBlockRows * layer.i)),
        bytes(layout.bytes()) {}
  int64_t bytes;
};

struct Workspace {
  ChunkDispatch dispatch;
  std::vector<ChunkRoutes> routes;  // of each set of buffers
  ExpertBank bank;
  Workspace(const DispatchShape& s, bool gate_up_bias, bool down_bias, WorkspaceLayout& layout)
      : dispatch(s, std::vector{s.layer.h * kFloatBytes}, /*returned_lanes=*/1, layout),
        routes(MakeRoutes(s, layout)),
        bank(s, ExpertPartBytes(s.layer, gate_up_bias, down_bias), layout) {}
};

int64_t BlockBytes(const DispatchShape& s) {
  return BlockBuffers(s.layer, WorkspaceLayout(nullptr)).bytes;
}

int64_t PipelinedLlepWorkspace(const Node& node) {
  const DispatchShape s(node);
  WorkspaceLayout layout(nullptr);
  [[maybe_unused]] const Workspace taken(s, node.in(5) != nullptr, node.in(6) != nullptr, layout);
  return layout.bytes() + CpuThreads() * BlockBytes(s);
}

// Counts this rank's routes per (leaf, expert) and gathers those of its group.
void GatherCounts(const KernelContext& c, const DispatchShape& s, const int64_t* ids,
                  std::span<int64_t> counts) {
  Communicator* group = ExpertGroup(c, s);
  const int64_t rank = group == nullptr ? 0 : group->rank();
  const int64_t each = s.knobs.leaves * s.knobs.experts;
  const auto own = counts.subspan(static_cast<size_t>(rank * each), static_cast<size_t>(each));
  std::fill(own.begin(), own.end(), 0);
  for (int64_t route = 0; route < s.n * s.k; ++route) {
    const int64_t leaf = route / s.k % s.knobs.leaves;
    ++own[static_cast<size_t>(leaf * s.knobs.experts + ids[route])];
  }
  if (group == nullptr) return;
  group->AllGather(std::as_bytes(own), std::as_writable_bytes(counts),
                   {"GatherRouteCounts", c.node.in(3)->name});
}

class Forward : public ChunkJob {
 public:
  explicit Forward(KernelContext& c)
      : s_(c.attributes(), c.inputs[0].dims, c.inputs[1].dims, c.inputs[4].dims),
        in_(c),
        y_(c.outputs[0].data<float>()),
        layout_(c.workspace.data()),
        w_(s_, c.has(5), c.has(6), layout_),
        blocks_(TakeRest<std::byte>(layout_, c.workspace)) {
    CheckExpertIds(in_.ids, s_.n, s_.k, s_.knobs.experts);
    const std::span counts(c.outputs[1].data<int64_t>(), static_cast<size_t>(s_.counts()));
    GatherCounts(c, s_, in_.ids, counts);
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
    PackTokens(routes.slots(), in_.x, chunk.lanes[0]);
  }

  void Compute(ChunkBuffers& chunk, const std::function<void()>& halfway) override {
    w_.bank.Wait();
    const std::vector<RowBlock> blocks = ChunkRows::CutBlocks(chunk.rows->units, kBlockRows);
    const std::span<const RowBlock> all(blocks);
    RunBlocks(chunk, all.first(blocks.size() / 2));
    halfway();
    RunBlocks(chunk, all.subspan(blocks.size() / 2));
  }

  void Unpack(ChunkBuffers& chunk) override {
    FoldSlots(w_.routes[chunk.set].slots(), s_.layer.h, Home(chunk.lanes[0]), in_.weights, y_);
  }

 private:
  void RunBlocks(ChunkBuffers& chunk, std::span<const RowBlock> blocks) {
    const int64_t bytes = BlockBytes(s_);
    ForEachTask(std::ssize(blocks), std::ssize(blocks_) / bytes, [&](int64_t slot, int64_t task) {
      RunBlock(chunk, BlockBuffers(s_.layer, WorkspaceLayout(blocks_.data() + slot * bytes)),
               blocks[static_cast<size_t>(task)]);
    });
  }

  // The block's rows take the place of its x.
  void RunBlock(ChunkBuffers& chunk, const BlockBuffers& b, const RowBlock& block) {
    const int64_t* at = w_.routes[chunk.set].away_row() + block.begin;
    float* rows = Away(chunk.lanes[0]);
    GatherRows(rows, s_.layer.h, at, block.size(), b.x);
    ForwardRows(s_.layer, FindExpert(w_.bank, in_, block.expert), block.size(), b.x, b.gate_up, b.a,
                b.x);
    ScatterRows(b.x, s_.layer.h, at, block.size(), rows);
  }

  const DispatchShape s_;
  const ExpertsInputs in_;
  float* y_;
  WorkspaceLayout layout_;
  Workspace w_;
  std::span<std::byte> blocks_;
};

void LaunchPipelinedLlep(KernelContext& c) { Forward(c).Run(); }

}  // namespace

const Kernel& PipelinedLlepCpuKernel() {
  static const Kernel kernel{.launch = LaunchPipelinedLlep,
                             .workspace_bytes = PipelinedLlepWorkspace};
  return kernel;
}

}  // namespace weir
