#include "backend/cpu/parallel.h"
#include "backend/kernel.h"
#include "backend/step_split.h"
#include "kernels/common/parallel_tasks.h"
#include "kernels/experts/cpu.h"

namespace weir {
namespace {

// Buffers of one block of rows; every thread at work holds one.
struct Slot {
  float *x, *gate_up, *a;
  Slot(const ExpertsShape& s, WorkspaceLayout layout)
      : x(layout.Take<float>(kBlockRows * s.h)),
        gate_up(layout.Take<float>(kBlockRows * 2 * s.i)),
        a(layout.Take<float>(kBlockRows * s.i)),
        bytes(layout.bytes()) {}
  int64_t bytes;
};

struct Workspace {
  ChunkRouting routing;
  RowBlock* blocks;
  float* home;  // [rows of the chunk, H], un-reduced
  Workspace(const ExpertsShape& s, WorkspaceLayout& layout)
      : routing(s, layout),
        blocks(layout.Take<RowBlock>(ChunkRouting::MaxBlocks(s, kBlockRows))),
        home(layout.Take<float>(s.ChunkRoutes() * s.h)) {}
};

int64_t SlotBytes(const ExpertsShape& s) { return Slot(s, WorkspaceLayout(nullptr)).bytes; }

int64_t ExpertsWorkspace(const Node& node) {
  const ExpertsShape s(node);
  WorkspaceLayout layout(nullptr);
  Workspace(s, layout);
  return layout.bytes() + CpuThreads() * SlotBytes(s);
}

void ForwardBlock(const ExpertsShape& s, const ExpertLayer& layer, const ExpertsInputs& in,
                  const Workspace& w, const Slot& slot, const RowBlock& block) {
  w.routing.GatherTokens(block, in.x, s.h, slot.x);
  ForwardRows(layer, in.Expert(layer, block.expert), block.size(), slot.x, slot.gate_up, slot.a,
              w.home + block.begin * s.h);
}

ExpertLoad LoadOf(const ExpertsShape& s, const int64_t* ids) {
  ExpertLoad load{.routes = std::vector<int64_t>(static_cast<size_t>(s.e)),
                  .chunks = DivCeil(s.leaves, s.LeavesPerChunk())};
  for (int64_t route = 0; route < s.n * s.k; ++route) ++load.routes[static_cast<size_t>(ids[route])];
  return load;
}

void LaunchExperts(KernelContext& c) {
  const ExpertsShape s(c.attributes(), c.inputs[0].dims, c.inputs[1].dims, c.inputs[4].dims);
  const ExpertLayer layer{s.h, s.i, ExpertActivation(c.attributes())};
  const ExpertsInputs in(c);
  CheckExpertIds(in.ids, s.n, s.k, s.e);
  TellExpertLoad(LoadOf(s, in.ids));
  WorkspaceLayout layout(c.workspace.data());
  Workspace w(s, layout);
  std::byte* slots = c.workspace.data() + layout.bytes();
  const int64_t slot_bytes = SlotBytes(s);
  const int64_t slot_count = (std::ssize(c.workspace) - layout.bytes()) / slot_bytes;
  for (int64_t leaf = 0; leaf < s.leaves; leaf += s.LeavesPerChunk()) {
    w.routing.Build(in.ids, leaf);
    const int64_t blocks = w.routing.CutBlocks(0, w.routing.rows(), kBlockRows, w.blocks);
    ForEachTask(blocks, slot_count, [&](int64_t slot, int64_t task) {
      ForwardBlock(s, layer, in, w, Slot(s, WorkspaceLayout(slots + slot * slot_bytes)),
                   w.blocks[task]);
    });
    FoldSlots(w.routing.slots(), s.h, w.home, in.weights, c.outputs[0].data<float>());
  }
}

}  // namespace

const Kernel& ExpertsCpuKernel() {
  static const Kernel kernel{.launch = LaunchExperts, .workspace_bytes = ExpertsWorkspace};
  return kernel;
}

}  // namespace weir
