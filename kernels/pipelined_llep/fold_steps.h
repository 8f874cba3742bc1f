#pragma once
#include <span>
#include <vector>

#include "kernels/pipelined_llep/chunk_rows.h"

namespace weir {

// One round of returning weight-gradient partials, as one rank sees it: compute `helped` and send
// its partial to `owner`, fold `own` units, then add the partial of `awaited` that comes from its
// helper. Every rank of the group has the same number of steps; the last returns nothing.
struct FoldStep {
  const ChunkRows::Unit* helped = nullptr;
  int64_t owner = -1;
  std::span<const ChunkRows::Unit> own;
  const LlepUnit* awaited = nullptr;
  int64_t helper() const { return awaited == nullptr ? -1 : awaited->rank; }
};

// The owner meets all units of its experts in canonical order. Units that no partial waits for are
// dealt over the steps, so that a rank that only helps computes its own while partials travel.
std::vector<FoldStep> FoldSteps(const LlepKnobs& knobs, const ChunkRows& rows, int64_t rank);

}  // namespace weir
