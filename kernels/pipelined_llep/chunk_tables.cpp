#include "kernels/pipelined_llep/chunk_tables.h"

#include <algorithm>

namespace weir {
namespace {

constexpr int64_t kRunWords = sizeof(RowRun) / sizeof(int64_t);

int64_t MostHeld(const LlepKnobs& knobs) { return DivCeil(knobs.experts, knobs.ranks); }

}  // namespace

ChunkTables::ChunkTables(const DispatchShape& shape, std::span<const ChunkRows> chunks,
                         int64_t rank) {
  const LlepKnobs& knobs = shape.knobs;
  const auto position = [&](int64_t leaf) {
    return leaf * (shape.n / knobs.leaves) + std::min(leaf, shape.n % knobs.leaves);
  };
  const int64_t first = knobs.FirstExpert(rank), held = knobs.FirstExpert(rank + 1) - first;
  for (const ChunkRows& rows : chunks) {
    const int64_t begin = position(rows.chunk->first_leaf);
    Chunk chunk{
        begin, position(rows.chunk->end_leaf) - begin, AppendHome(rows), AppendAway(rows), {}, {}};
    for (const ChunkRows::Unit& unit : rows.units) {
      chunk.units.push_back({unit.unit->expert - first, unit.first, unit.end()});
    }
    chunk.table = AppendUnits(chunk.units, 0, held, words_);
    chunks_.push_back(std::move(chunk));
  }
}

void ChunkTables::Append(const RowRun& run) {
  words_.insert(words_.end(), {run.from, run.to, run.rows, run.expert});
}

ChunkTables::Runs ChunkTables::AppendHome(const ChunkRows& rows) {
  std::vector<RowRun> merged;
  for (const ChunkRows::HomeRun& run : rows.home) {
    if (!merged.empty() && merged.back().from + merged.back().rows == run.sorted &&
        merged.back().to + merged.back().rows == run.home) {
      merged.back().rows += run.rows;
    } else {
      merged.push_back({run.sorted, run.home, run.rows, run.unit->expert});
    }
  }
  if (merged.size() == 1) merged.clear();  // all rows, from 0 on
  const Runs runs{std::ssize(words_), std::ssize(merged)};
  for (const RowRun& run : merged) Append(run);
  return runs;
}

ChunkTables::Runs ChunkTables::AppendAway(const ChunkRows& rows) {
  const Runs runs{std::ssize(words_), std::ssize(rows.away)};
  for (const ChunkRows::AwayRun& run : rows.away) Append({run.row, run.away, run.rows, run.expert});
  return runs;
}

// An expert's rows in a leaf end at least one unit, every unit_rows of all rows end another; a unit
// is a run at home and one of each source away.
int64_t ChunkTables::MaxWords(const DispatchShape& shape) {
  const LlepKnobs& knobs = shape.knobs;
  const int64_t rows = knobs.ranks * knobs.top_k * knobs.max_tokens;
  const int64_t units = std::min(rows, knobs.experts * knobs.leaves + rows / knobs.unit_rows);
  return (1 + knobs.ranks) * units * kRunWords + UnitTableWords(units, 0) +
         knobs.leaves * UnitTableWords(0, MostHeld(knobs));
}

}  // namespace weir
