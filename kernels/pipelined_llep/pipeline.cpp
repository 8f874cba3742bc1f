#include "kernels/pipelined_llep/pipeline.h"

#include "backend/step_split.h"
#include "graph/error.h"

namespace weir {
namespace {

// counts[source rank][leaf][expert] of one source; helpers of all.
ExpertLoad LoadOf(const LlepKnobs& knobs, std::span<const int64_t> counts, const LlepPlan& plan,
                  int64_t rank) {
  ExpertLoad load{.routes = std::vector<int64_t>(static_cast<size_t>(knobs.experts)),
                  .chunks = std::ssize(plan.chunks)};
  for (int64_t leaf = 0; leaf < knobs.leaves; ++leaf) {
    for (int64_t expert = 0; expert < knobs.experts; ++expert)
      load.routes[static_cast<size_t>(expert)] += RouteCount(knobs, counts, rank, leaf, expert);
  }
  for (const auto& borrowed : plan.foreign) load.helpers += std::ssize(borrowed);
  return load;
}

}  // namespace

DispatchPlan::DispatchPlan(const KernelContext& c, const DispatchShape& shape,
                           std::span<const int64_t> counts)
    : plan_(MakeLlepPlan(shape.knobs, counts)),
      group_(ExpertGroup(c, shape)),
      tensor_(c.node.in(3)->name) {
  CheckLlepPlan(shape.knobs, counts, plan_);
  TellExpertLoad(LoadOf(shape.knobs, counts, plan_, rank()));
  for (const LlepChunk& chunk : plan_.chunks) {
    chunks_.emplace_back(shape.knobs, counts, chunk, rank());
    WEIR_CHECK(chunks_.back().away_rows <= shape.rows, ErrorCode::kInternal, "a chunk brings ",
               chunks_.back().away_rows, " rows, the buffer holds ", shape.rows);
  }
}

Communicator* ExpertGroup(const KernelContext& c, const DispatchShape& shape) {
  const int64_t held = c.inputs[3].dims[0];
  Communicator* group = shape.distributed() ? c.communicator : nullptr;
  const int64_t ranks = group == nullptr ? 1 : group->size();
  WEIR_CHECK(ranks == shape.knobs.ranks, ErrorCode::kInternal, "experts are spread over ",
             shape.knobs.ranks, " ranks, the group has ", ranks);
  const int64_t rank = group == nullptr ? 0 : group->rank();
  const int64_t share = shape.knobs.FirstExpert(rank + 1) - shape.knobs.FirstExpert(rank);
  WEIR_CHECK(held == share, ErrorCode::kInternal, "rank ", rank, " of ", ranks, " holds ", held,
             " experts, its share is ", share);
  return group;
}

size_t BufferSets(const DispatchShape& shape) {
  return shape.distributed() && shape.sizes.chunks > 1 ? 2 : 1;
}

void RunChunks(size_t chunks, size_t sets, ChunkStages& stages) {
  if (chunks > 0) stages.Begin(0);
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    stages.Compute(chunk, [&, chunk] {
      if (sets == 1) return;
      if (chunk > 0) stages.End(chunk - 1);
      if (chunk + 1 < chunks) stages.Begin(chunk + 1);
    });
    if (sets > 1) continue;
    stages.End(chunk);
    if (chunk + 1 < chunks) stages.Begin(chunk + 1);
  }
  if (sets > 1 && chunks > 0) stages.End(chunks - 1);
}

}  // namespace weir
