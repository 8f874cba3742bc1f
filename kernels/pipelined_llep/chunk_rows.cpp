#include "kernels/pipelined_llep/chunk_rows.h"

#include <algorithm>
#include <numeric>

namespace weir {
namespace {

// Each rank's first row when ranks' rows follow each other.
std::vector<int64_t> Starts(std::span<const int64_t> rows) {
  std::vector<int64_t> starts(rows.size());
  std::exclusive_scan(rows.begin(), rows.end(), starts.begin(), int64_t{0});
  return starts;
}

// A unit's rows from each source.
std::vector<int64_t> Slices(const LlepKnobs& knobs, std::span<const int64_t> counts,
                            const LlepUnit& unit) {
  std::vector<int64_t> slices;
  int64_t before = 0;
  for (int64_t source = 0; source < knobs.ranks; ++source) {
    const int64_t rows = RouteCount(knobs, counts, source, unit.leaf, unit.expert);
    const auto inside = [&](int64_t row) { return std::clamp(row - before, int64_t{0}, rows); };
    slices.push_back(inside(unit.end) - inside(unit.begin));
    before += rows;
  }
  return slices;
}

}  // namespace

ChunkRows::ChunkRows(const LlepKnobs& knobs, std::span<const int64_t> counts,
                     const LlepChunk& chunk_, int64_t rank)
    : chunk(&chunk_),
      sent(static_cast<size_t>(knobs.ranks)),
      received(static_cast<size_t>(knobs.ranks)) {
  const auto each_source = static_cast<size_t>(knobs.ranks);
  std::vector<int64_t> away_slices;  // of units, by source
  for (const LlepUnit& unit : chunk->units) {
    const std::vector<int64_t> slices = Slices(knobs, counts, unit);
    if (const int64_t rows = slices[static_cast<size_t>(rank)]; rows > 0) {
      home.push_back({&unit, home_rows, 0, rows});
      home_rows += rows;
      sent[static_cast<size_t>(unit.rank)] += rows;
    }
    if (unit.rank != rank) continue;
    away_slices.insert(away_slices.end(), slices.begin(), slices.end());
    for (size_t source = 0; source < each_source; ++source) received[source] += slices[source];
    units.push_back({&unit, away_rows});
    away_rows += unit.rows();
  }
  std::vector<int64_t> next = Starts(sent);
  for (HomeRun& run : home) {
    run.home = next[static_cast<size_t>(run.unit->rank)];
    next[static_cast<size_t>(run.unit->rank)] += run.rows;
  }
  next = Starts(received);
  for (size_t u = 0; u < units.size(); ++u) {
    int64_t row = units[u].first;
    for (size_t source = 0; source < each_source; ++source) {
      const int64_t rows = away_slices[u * each_source + source];
      if (rows > 0) away.push_back({static_cast<int64_t>(source), row, next[source], rows});
      row += rows;
      next[source] += rows;
    }
  }
}

std::vector<RowBlock> ChunkRows::CutBlocks(std::span<const Unit> units, int64_t most) {
  std::vector<RowBlock> blocks;
  for (size_t u = 0; u < units.size();) {
    const int64_t expert = units[u].unit->expert;
    int64_t row = units[u].first, end = row;
    while (u < units.size() && units[u].unit->expert == expert) end = units[u++].end();
    for (; row < end; row += most) blocks.push_back({expert, row, std::min(end, row + most)});
  }
  return blocks;
}

std::vector<std::span<const ChunkRows::Unit>> ChunkRows::CutBatches(std::span<const Unit> units,
                                                                    int64_t most) {
  std::vector<std::span<const Unit>> batches;
  while (!units.empty()) {
    size_t count = 1;
    while (count < units.size() && units[count].end() - units[0].first <= most) ++count;
    batches.push_back(units.first(count));
    units = units.subspan(count);
  }
  return batches;
}

}  // namespace weir
