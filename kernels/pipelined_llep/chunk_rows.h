#pragma once
#include <span>
#include <vector>

#include "kernels/experts/routing.h"
#include "kernels/llep/plan.h"

namespace weir {

// Which rows one rank sends, receives and computes in one chunk. Home rows (on the rank of their
// tokens) are sorted by (rank that computes, expert, leaf, unit, token, slot), away rows (on the
// rank that computes) by (rank of the token, expert, leaf, unit, token, slot), so ranks exchange
// runs of rows and no index. Rows are computed in canonical order: expert, leaf, unit, source rank,
// token, slot. A pure function of the plan and of counts[source rank][leaf][expert].
struct ChunkRows {
  ChunkRows(const LlepKnobs& knobs, std::span<const int64_t> counts, const LlepChunk& chunk,
            int64_t rank);

  struct Unit {
    const LlepUnit* unit;
    int64_t first;  // its first row of the compute order
    int64_t end() const { return first + unit->rows(); }
  };
  // This rank's routes to a unit: consecutive among its routes sorted by (expert, leaf, token,
  // slot), and consecutive home rows.
  struct HomeRun {
    const LlepUnit* unit;
    int64_t sorted, home, rows;
  };
  // A unit's rows from one source: consecutive rows of the compute order and away.
  struct AwayRun {
    int64_t source, row, away, rows;
  };

  const LlepChunk* chunk;
  std::vector<Unit> units;  // that this rank computes, in canonical order
  std::vector<HomeRun> home;
  std::vector<AwayRun> away;             // by row
  std::vector<int64_t> sent, received;   // rows to and from each rank
  int64_t home_rows = 0, away_rows = 0;  // their sums

  // Rows of `units` cut at expert edges and every `most` rows.
  static std::vector<RowBlock> CutBlocks(std::span<const Unit> units, int64_t most);
  // Runs of whole units of up to `most` rows; a longer unit is a run by itself.
  static std::vector<std::span<const Unit>> CutBatches(std::span<const Unit> units, int64_t most);
};

}  // namespace weir
