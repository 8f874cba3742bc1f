#include "kernels/llep/plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "graph/error.h"
#include "graph/shape.h"

namespace weir {
namespace {

// Plans one run of leaves. `foreign` is what ranks borrow so far; it grows by what this run adds.
class ChunkPlanner {
 public:
  ChunkPlanner(const LlepKnobs& knobs, std::span<const int64_t> counts,
               std::vector<std::vector<int64_t>>& foreign)
      : knobs_(knobs),
        counts_(counts),
        foreign_(foreign),
        load_(static_cast<size_t>(knobs.ranks)) {}

  LlepChunk Run(int64_t first_leaf, int64_t end_leaf) {
    chunk_.first_leaf = first_leaf;
    chunk_.end_leaf = end_leaf;
    CutUnits();
    for (const LlepUnit& unit : chunk_.units) Load(unit.rank) += unit.rows();
    const int64_t total = chunk_.rows();
    const int64_t fullest = *std::max_element(load_.begin(), load_.end());
    const bool plain = knobs_.ranks == 1 || static_cast<double>(fullest * knobs_.ranks) <
                                                knobs_.lambda * static_cast<double>(total);
    if (!plain && total > 0) Balance(total);
    SetRounds();
    chunk_.received = load_;
    return std::move(chunk_);
  }

 private:
  int64_t& Load(int64_t rank) { return load_[static_cast<size_t>(rank)]; }
  std::vector<int64_t>& Foreign(int64_t rank) { return foreign_[static_cast<size_t>(rank)]; }
  bool Borrows(int64_t rank, int64_t expert) {
    return std::find(Foreign(rank).begin(), Foreign(rank).end(), expert) != Foreign(rank).end();
  }

  void CutUnits() {
    first_unit_.assign(1, 0);
    for (int64_t expert = 0; expert < knobs_.experts; ++expert) {
      for (int64_t leaf = chunk_.first_leaf; leaf < chunk_.end_leaf; ++leaf) {
        int64_t rows = 0;
        for (int64_t source = 0; source < knobs_.ranks; ++source)
          rows += RouteCount(knobs_, counts_, source, leaf, expert);
        for (int64_t row = 0; row < rows; row += knobs_.unit_rows) {
          chunk_.units.push_back(
              {expert, leaf, row, std::min(rows, row + knobs_.unit_rows), knobs_.Owner(expert)});
        }
      }
      first_unit_.push_back(chunk_.units.size());
    }
  }

  // Experts by descending load: what an owner has no room for goes to the least loaded ranks.
  void Balance(int64_t total) {
    cap_ = static_cast<int64_t>(
        std::ceil(knobs_.alpha * static_cast<double>(total) / static_cast<double>(knobs_.ranks)));
    std::vector<int64_t> rows, order(static_cast<size_t>(knobs_.experts));
    for (int64_t expert = 0; expert < knobs_.experts; ++expert) rows.push_back(RowsOf(expert));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return rows[static_cast<size_t>(a)] > rows[static_cast<size_t>(b)];
    });
    for (const int64_t expert : order) {
      if (Load(knobs_.Owner(expert)) > cap_) Spill(expert);
    }
    chunk_.balanced = *std::max_element(load_.begin(), load_.end()) <= cap_;
  }

  std::span<LlepUnit> UnitsOf(int64_t expert) {
    const size_t first = first_unit_[static_cast<size_t>(expert)];
    return std::span(chunk_.units)
        .subspan(first, first_unit_[static_cast<size_t>(expert) + 1] - first);
  }
  int64_t RowsOf(int64_t expert) {
    int64_t rows = 0;
    for (const LlepUnit& unit : UnitsOf(expert)) rows += unit.rows();
    return rows;
  }

  // The source that most of a unit's rows come from; the lowest of equals.
  int64_t MainSource(const LlepUnit& unit) const {
    int64_t best = 0, most = 0;
    for (int64_t source = 0; source < knobs_.ranks; ++source) {
      const int64_t rows = SliceOf(knobs_, counts_, unit, source).rows;
      if (rows > most) best = source, most = rows;
    }
    return best;
  }

  // An expert's units dealt over source ranks, so that a run of them draws on all sources.
  std::vector<LlepUnit*> Dealt(int64_t expert) {
    std::vector<std::pair<int64_t, LlepUnit*>> turns;  // how many units of that source came before
    std::vector<int64_t> seen(static_cast<size_t>(knobs_.ranks));
    for (LlepUnit& unit : UnitsOf(expert))
      turns.push_back({seen[static_cast<size_t>(MainSource(unit))]++, &unit});
    std::stable_sort(turns.begin(), turns.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<LlepUnit*> units;
    for (const auto& [turn, unit] : turns) units.push_back(unit);
    return units;
  }

  // Removes from `units` those that fit into `room`, first come first served, and hands them back.
  static std::vector<LlepUnit*> TakeFitting(std::vector<LlepUnit*>& units, int64_t room) {
    std::vector<LlepUnit*> taken, rest;
    for (LlepUnit* unit : units) {
      const bool fits = unit->rows() <= room;
      if (fits) room -= unit->rows();
      (fits ? taken : rest).push_back(unit);
    }
    units = std::move(rest);
    return taken;
  }

  void Spill(int64_t expert) {
    const int64_t owner = knobs_.Owner(expert);
    std::vector<LlepUnit*> spilled = Dealt(expert);
    TakeFitting(spilled, std::max<int64_t>(0, cap_ - Load(owner) + RowsOf(expert)));
    std::vector<bool> tried(static_cast<size_t>(knobs_.ranks));
    tried[static_cast<size_t>(owner)] = true;
    while (!spilled.empty()) {
      const int64_t helper = BestHelper(expert, tried);
      if (helper < 0) return;
      tried[static_cast<size_t>(helper)] = true;
      std::vector<LlepUnit*> rest = spilled;
      const std::vector<LlepUnit*> piece = TakeFitting(rest, cap_ - Load(helper));
      int64_t rows = 0;
      for (const LlepUnit* unit : piece) rows += unit->rows();
      if (rows < knobs_.min_rows) continue;
      for (LlepUnit* unit : piece) unit->rank = helper;
      Load(owner) -= rows;
      Load(helper) += rows;
      if (!Borrows(helper, expert)) Foreign(helper).push_back(expert);
      spilled = std::move(rest);
    }
  }

  // Ranks that borrow the expert already come first, then those with a free slot; the least loaded
  // of either.
  int64_t BestHelper(int64_t expert, const std::vector<bool>& tried) {
    int64_t best = -1;
    bool best_borrows = false;
    for (int64_t rank = 0; rank < knobs_.ranks; ++rank) {
      const bool borrows = Borrows(rank, expert);
      const bool may = borrows || std::ssize(Foreign(rank)) < knobs_.max_foreign;
      if (tried[static_cast<size_t>(rank)] || !may || Load(rank) >= cap_) continue;
      const bool better = best < 0 || (borrows != best_borrows ? borrows : Load(rank) < Load(best));
      if (better) best = rank, best_borrows = borrows;
    }
    return best;
  }

  // Partials of one owner travel in canonical order, one a round; owners take turns.
  void SetRounds() {
    std::vector<std::vector<LlepUnit*>> away(static_cast<size_t>(knobs_.ranks));  // by owner
    size_t longest = 0;
    for (LlepUnit& unit : chunk_.units) {
      const auto owner = static_cast<size_t>(knobs_.Owner(unit.expert));
      if (unit.rank == static_cast<int64_t>(owner)) continue;
      away[owner].push_back(&unit);
      longest = std::max(longest, away[owner].size());
    }
    std::vector<int64_t> sends(away.size()), takes(away.size());  // first free round
    for (size_t turn = 0; turn < longest; ++turn) {
      for (size_t owner = 0; owner < away.size(); ++owner) {
        if (turn >= away[owner].size()) continue;
        LlepUnit& unit = *away[owner][turn];
        int64_t& free = sends[static_cast<size_t>(unit.rank)];
        unit.round = std::max(free, takes[owner]);
        free = takes[owner] = unit.round + 1;
        chunk_.rounds = std::max(chunk_.rounds, unit.round + 1);
      }
    }
  }

  const LlepKnobs& knobs_;
  std::span<const int64_t> counts_;
  std::vector<std::vector<int64_t>>& foreign_;
  std::vector<int64_t> load_;  // rows per rank as assigned so far
  LlepChunk chunk_;
  std::vector<size_t> first_unit_;  // of each expert
  int64_t cap_ = 0;
};

void CheckCounts(const LlepKnobs& knobs, std::span<const int64_t> counts) {
  WEIR_CHECK(std::ssize(counts) == knobs.ranks * knobs.leaves * knobs.experts, ErrorCode::kInternal,
             "a plan for ", knobs.ranks, " ranks, ", knobs.leaves, " leaves and ", knobs.experts,
             " experts got ", counts.size(), " counts");
  const int64_t most = ChunkSizesOf(knobs).leaf_tokens * knobs.top_k;
  for (int64_t at = 0; at < knobs.ranks * knobs.leaves; ++at) {
    int64_t routes = 0;
    for (const int64_t count : counts.subspan(static_cast<size_t>(at * knobs.experts),
                                              static_cast<size_t>(knobs.experts))) {
      WEIR_CHECK(count >= 0, ErrorCode::kInternal, "a route count is ", count);
      routes += count;
    }
    WEIR_CHECK(routes <= most, ErrorCode::kInternal, "rank ", at / knobs.leaves, " routes ", routes,
               " rows of leaf ", at % knobs.leaves, ", at most ", most, " are planned for");
  }
}

}  // namespace

int64_t LlepChunk::rows() const {
  int64_t rows = 0;
  for (const LlepUnit& unit : units) rows += unit.rows();
  return rows;
}

int64_t LlepPlan::Slot(int64_t rank, int64_t expert) const {
  const auto& slots = foreign[static_cast<size_t>(rank)];
  const auto at = std::find(slots.begin(), slots.end(), expert);
  return at == slots.end() ? -1 : at - slots.begin();
}

UnitSlice SliceOf(const LlepKnobs& knobs, std::span<const int64_t> counts, const LlepUnit& unit,
                  int64_t source) {
  int64_t before = 0;
  for (int64_t s = 0; s < source; ++s)
    before += RouteCount(knobs, counts, s, unit.leaf, unit.expert);
  const int64_t own = RouteCount(knobs, counts, source, unit.leaf, unit.expert);
  const int64_t begin = std::clamp<int64_t>(unit.begin - before, 0, own);
  return {begin, std::clamp<int64_t>(unit.end - before, 0, own) - begin};
}

LlepPlan MakeLlepPlan(const LlepKnobs& knobs, std::span<const int64_t> counts) {
  knobs.Validate();
  CheckCounts(knobs, counts);
  LlepPlan plan;
  plan.foreign.resize(static_cast<size_t>(knobs.ranks));
  const int64_t most_leaves = ChunkSizesOf(knobs).leaves, most_rows = RowBound(knobs);
  for (int64_t leaf = 0; leaf < knobs.leaves;) {
    for (int64_t leaves = std::min(most_leaves, knobs.leaves - leaf);;
         leaves = DivCeil(leaves, 2)) {
      auto foreign = plan.foreign;
      LlepChunk chunk = ChunkPlanner(knobs, counts, foreign).Run(leaf, leaf + leaves);
      const bool fits =
          *std::max_element(chunk.received.begin(), chunk.received.end()) <= most_rows;
      if (!fits && leaves > 1) continue;
      plan.foreign = std::move(foreign);
      if (!chunk.units.empty()) plan.chunks.push_back(std::move(chunk));
      leaf += leaves;
      break;
    }
  }
  return plan;
}

}  // namespace weir
