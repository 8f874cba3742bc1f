#include "kernels/pipelined_llep/fold_steps.h"

#include <algorithm>
#include <tuple>

namespace weir {
namespace {

bool Before(const LlepUnit& a, const LlepUnit& b) {
  return std::tie(a.expert, a.leaf, a.begin) < std::tie(b.expert, b.leaf, b.begin);
}

}  // namespace

std::vector<FoldStep> FoldSteps(const LlepKnobs& knobs, const ChunkRows& rows, int64_t rank) {
  std::vector<FoldStep> steps(static_cast<size_t>(rows.chunk->rounds + 1));
  const std::span<const ChunkRows::Unit> all(rows.units);
  size_t own_begin = all.size(), own_end = 0;  // this rank's experts are neighbours
  for (size_t u = 0; u < all.size(); ++u) {
    if (all[u].unit->round < 0) {
      own_begin = std::min(own_begin, u);
      own_end = u + 1;
      continue;
    }
    FoldStep& step = steps[static_cast<size_t>(all[u].unit->round)];
    step.helped = &all[u];
    step.owner = knobs.Owner(all[u].unit->expert);
  }
  for (const LlepUnit& unit : rows.chunk->units) {
    if (unit.round >= 0 && knobs.Owner(unit.expert) == rank)
      steps[static_cast<size_t>(unit.round)].awaited = &unit;
  }
  if (own_begin >= own_end) return steps;
  std::vector<const LlepUnit*> next(steps.size());  // awaited at a step or later
  for (size_t s = steps.size(); s-- > 0;) {
    const bool last = s + 1 == steps.size();
    next[s] = steps[s].awaited != nullptr || last ? steps[s].awaited : next[s + 1];
  }
  const int64_t first = all[own_begin].first, own_rows = all[own_end - 1].end() - first;
  for (size_t s = 0; s < steps.size(); ++s) {
    const int64_t share = own_rows * static_cast<int64_t>(s + 1) / std::ssize(steps);
    const auto due = [&](const ChunkRows::Unit& unit) {
      if (next[s] != nullptr && !Before(*unit.unit, *next[s])) return false;
      return steps[s].awaited != nullptr || unit.first - first < share;
    };
    const size_t begin = own_begin;
    while (own_begin < own_end && due(all[own_begin])) ++own_begin;
    steps[s].own = all.subspan(begin, own_begin - begin);
  }
  return steps;
}

}  // namespace weir
