#include "kernels/pipelined_llep/chunk_routes.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "graph/error.h"

namespace weir {
namespace {

// Each rank's first row when ranks' rows follow each other.
std::vector<int64_t> Starts(std::span<const int64_t> rows) {
  std::vector<int64_t> starts(rows.size());
  std::exclusive_scan(rows.begin(), rows.end(), starts.begin(), int64_t{0});
  return starts;
}

}  // namespace

ChunkRoutes::ChunkRoutes(const DispatchShape& shape, WorkspaceLayout& layout)
    : shape_(shape),
      tokens_at_(layout.Take<int64_t>(shape.sizes.tokens)),
      home_row_(layout.Take<int64_t>(shape.home_rows())),
      away_row_(layout.Take<int64_t>(shape.rows)),
      unit_end_(layout.Take<int64_t>(shape.rows)) {}

void ChunkRoutes::Build(const LlepChunk& chunk, std::span<const int64_t> counts, const int64_t* ids,
                        int64_t rank) {
  chunk_ = &chunk;
  PlaceHome(counts, ids, rank);
  PlaceAway(counts, rank);
}

void ChunkRoutes::PlaceHome(std::span<const int64_t> counts, const int64_t* ids, int64_t rank) {
  const LlepKnobs& knobs = shape_.knobs;
  const std::vector<LlepUnit>& units = chunk_->units;
  std::vector<int64_t> rows;  // of this rank in each unit
  sent_.assign(static_cast<size_t>(knobs.ranks), 0);
  for (const LlepUnit& unit : units) {
    rows.push_back(SliceOf(knobs, counts, unit, rank).rows);
    sent_[static_cast<size_t>(unit.rank)] += rows.back();
  }
  home_rows_ = std::accumulate(sent_.begin(), sent_.end(), int64_t{0});
  std::vector<int64_t> cursor = Starts(sent_), next(units.size());
  for (size_t u = 0; u < units.size(); ++u) {
    next[u] = std::exchange(cursor[static_cast<size_t>(units[u].rank)],
                            cursor[static_cast<size_t>(units[u].rank)] + rows[u]);
  }
  // Routes of an expert come leaf by leaf, as its units do: one walk through both.
  std::vector<size_t> at(static_cast<size_t>(knobs.experts), units.size());
  for (size_t u = units.size(); u-- > 0;) at[static_cast<size_t>(units[u].expert)] = u;
  tokens_ = 0;
  for (int64_t leaf = chunk_->first_leaf; leaf < chunk_->end_leaf; ++leaf) {
    for (int64_t token = leaf; token < shape_.n; token += knobs.leaves) {
      for (int64_t slot = 0; slot < shape_.k; ++slot) {
        const int64_t expert = ids[token * shape_.k + slot];
        size_t& u = at[static_cast<size_t>(expert)];
        while (u < units.size() && rows[u] == 0) ++u;
        WEIR_CHECK(u < units.size() && units[u].expert == expert && units[u].leaf == leaf,
                   ErrorCode::kInternal, "token ", token, " routes to expert ", expert,
                   ", which the forward pass did not count: routes are chosen once and kept");
        --rows[u];
        home_row_[tokens_ * shape_.k + slot] = next[u]++;
      }
      tokens_at_[tokens_++] = token;
    }
  }
}

void ChunkRoutes::PlaceAway(std::span<const int64_t> counts, int64_t rank) {
  const LlepKnobs& knobs = shape_.knobs;
  units_.clear();
  received_.assign(static_cast<size_t>(knobs.ranks), 0);
  away_rows_ = 0;
  std::vector<int64_t> slices;  // of each unit, by source
  for (const LlepUnit& unit : chunk_->units) {
    if (unit.rank != rank) continue;
    for (int64_t source = 0; source < knobs.ranks; ++source) {
      slices.push_back(SliceOf(knobs, counts, unit, source).rows);
      received_[static_cast<size_t>(source)] += slices.back();
    }
    units_.push_back({&unit, away_rows_});
    away_rows_ += unit.rows();
  }
  WEIR_CHECK(away_rows_ <= shape_.rows, ErrorCode::kInternal, "a chunk brings ", away_rows_,
             " rows, the buffer holds ", shape_.rows);
  std::vector<int64_t> cursor = Starts(received_);
  auto slice = slices.begin();
  for (const Unit& unit : units_) {
    int64_t row = unit.first;
    for (int64_t& next : cursor) {
      for (const int64_t end = row + *slice++; row < end; ++row) away_row_[row] = next++;
    }
    std::fill(unit_end_ + unit.first, unit_end_ + unit.end(), unit.end());
  }
}

std::vector<RowBlock> ChunkRoutes::CutBlocks(std::span<const Unit> units, int64_t most) {
  std::vector<RowBlock> blocks;
  for (size_t u = 0; u < units.size();) {
    const int64_t expert = units[u].unit->expert;
    int64_t row = units[u].first, end = row;
    while (u < units.size() && units[u].unit->expert == expert) end = units[u++].end();
    for (; row < end; row += most) blocks.push_back({expert, row, std::min(end, row + most)});
  }
  return blocks;
}

}  // namespace weir
