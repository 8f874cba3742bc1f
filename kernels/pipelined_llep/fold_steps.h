#pragma once
#include <span>
#include <vector>

#include "kernels/pipelined_llep/chunk_rows.h"

namespace weir {

// One round of returning weight-gradient partials, as one rank sees it: compute `helped` and send
// its partial to `owner`, fold `own` units, then add the partial of `awaited` that comes from its
// helper. Every rank of the group has the same number of steps; the last returns nothing.
struct FoldStep {
  using Units = std::span<const ChunkRows::Unit>;
  const ChunkRows::Unit* helped = nullptr;
  int64_t owner = -1;
  std::vector<Units> own;  // runs of neighbours
  const LlepUnit* awaited = nullptr;
  int64_t helper() const { return awaited == nullptr ? -1 : awaited->rank; }
};

// The owner meets the units of each of its experts in canonical order. Beyond what a partial waits
// for, own units are dealt evenly over the steps, at least `least_rows` at a time, so that all
// ranks compute while partials travel.
std::vector<FoldStep> FoldSteps(const LlepKnobs& knobs, const ChunkRows& rows, int64_t rank,
                                int64_t least_rows);

}  // namespace weir
