#include "kernels/pipelined_llep/chunk_routes.h"

#include <algorithm>
#include <numeric>

#include "graph/error.h"

namespace weir {

ChunkRoutes::ChunkRoutes(const DispatchShape& shape, WorkspaceLayout& layout)
    : shape_(shape),
      tokens_at_(layout.Take<int64_t>(shape.sizes.tokens)),
      home_row_(layout.Take<int64_t>(shape.home_rows())),
      away_row_(layout.Take<int64_t>(shape.rows)),
      unit_end_(layout.Take<int64_t>(shape.rows)) {}

void ChunkRoutes::Build(const ChunkRows& rows, const int64_t* ids) {
  PlaceHome(rows, ids);
  PlaceAway(rows);
}

// Routes of an expert come leaf by leaf, as its runs do: one walk through both.
void ChunkRoutes::PlaceHome(const ChunkRows& rows, const int64_t* ids) {
  struct Cursor {
    size_t run;
    int64_t done = 0;  // rows of the run
  };
  const std::vector<ChunkRows::HomeRun>& runs = rows.home;
  std::vector<Cursor> at(static_cast<size_t>(shape_.knobs.experts), {runs.size()});
  for (size_t r = runs.size(); r-- > 0;) at[static_cast<size_t>(runs[r].unit->expert)] = {r};
  tokens_ = 0;
  for (int64_t leaf = rows.chunk->first_leaf; leaf < rows.chunk->end_leaf; ++leaf) {
    for (int64_t token = leaf; token < shape_.n; token += shape_.knobs.leaves) {
      for (int64_t slot = 0; slot < shape_.k; ++slot) {
        const int64_t expert = ids[token * shape_.k + slot];
        Cursor& cursor = at[static_cast<size_t>(expert)];
        if (cursor.run < runs.size() && cursor.done == runs[cursor.run].rows) {
          cursor = {cursor.run + 1};
        }
        const size_t r = cursor.run;
        WEIR_CHECK(r < runs.size() && runs[r].unit->expert == expert && runs[r].unit->leaf == leaf,
                   ErrorCode::kInternal, "token ", token, " routes to expert ", expert,
                   ", which the forward pass did not count: routes are chosen once and kept");
        home_row_[tokens_ * shape_.k + slot] = runs[r].home + cursor.done++;
      }
      tokens_at_[tokens_++] = token;
    }
  }
}

void ChunkRoutes::PlaceAway(const ChunkRows& rows) {
  for (const ChunkRows::AwayRun& run : rows.away) {
    std::iota(away_row_ + run.row, away_row_ + run.row + run.rows, run.away);
  }
  for (const ChunkRows::Unit& unit : rows.units) {
    std::fill(unit_end_ + unit.first, unit_end_ + unit.end(), unit.end());
  }
}

}  // namespace weir
