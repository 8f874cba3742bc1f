#include "kernels/pipelined_llep/fold_steps.h"

#include <algorithm>
#include <tuple>

namespace weir {
namespace {

// A unit at home: the first step at which it may be folded, and the last.
struct Window {
  const ChunkRows::Unit* unit;
  int64_t first, last;
  bool folded = false;
};

// Units of one expert follow each other as their partials do.
std::vector<Window> Windows(const LlepKnobs& knobs, const ChunkRows& rows, int64_t rank) {
  std::vector<Window> windows;
  const auto& units = rows.chunk->units;
  auto own = rows.units.begin();
  int64_t expert = -1, after = 0;  // the step behind the expert's last partial so far
  size_t open = 0;                 // windows from here on wait for the expert's next partial
  for (const LlepUnit& unit : units) {
    if (knobs.Owner(unit.expert) != rank) continue;
    if (unit.expert != expert) expert = unit.expert, after = 0, open = windows.size();
    if (unit.round >= 0) {
      for (; open < windows.size(); ++open) windows[open].last = unit.round;
      after = unit.round + 1;
      continue;
    }
    while (own->unit != &unit) ++own;
    windows.push_back({&*own, after, rows.chunk->rounds});
  }
  return windows;
}

void Add(std::vector<FoldStep::Units>& runs, const ChunkRows::Unit* unit) {
  if (!runs.empty() && runs.back().data() + runs.back().size() == unit) {
    runs.back() = {runs.back().data(), runs.back().size() + 1};
  } else {
    runs.push_back({unit, 1});
  }
}

}  // namespace

std::vector<FoldStep> FoldSteps(const LlepKnobs& knobs, const ChunkRows& rows, int64_t rank,
                                int64_t least_rows) {
  std::vector<FoldStep> steps(static_cast<size_t>(rows.chunk->rounds + 1));
  for (const ChunkRows::Unit& unit : rows.units) {
    if (unit.unit->round < 0) continue;
    FoldStep& step = steps[static_cast<size_t>(unit.unit->round)];
    step.helped = &unit;
    step.owner = knobs.Owner(unit.unit->expert);
  }
  for (const LlepUnit& unit : rows.chunk->units) {
    if (unit.round >= 0 && knobs.Owner(unit.expert) == rank)
      steps[static_cast<size_t>(unit.round)].awaited = &unit;
  }
  std::vector<Window> windows = Windows(knobs, rows, rank);
  int64_t own_rows = 0, folded = 0;
  for (const Window& window : windows) own_rows += window.unit->unit->rows();
  for (int64_t s = 0; s < std::ssize(steps); ++s) {
    int64_t due = own_rows * (s + 1) / std::ssize(steps) - folded;
    if (due < least_rows) due = 0;
    for (Window& window : windows) {
      const bool must = window.last <= s;
      if (window.folded || window.first > s || (!must && due <= 0)) continue;
      window.folded = true;
      folded += window.unit->unit->rows();
      due -= window.unit->unit->rows();
      Add(steps[static_cast<size_t>(s)].own, window.unit);
    }
  }
  return steps;
}

}  // namespace weir
