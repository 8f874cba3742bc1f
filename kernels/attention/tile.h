#pragma once
#include "backend/kernel.h"
#include "kernels/attention/config.h"

namespace weir {

// Part of the numerical definition: sums over keys and queries run tile by tile.
inline constexpr int64_t kQueryTile = 64, kKeyTile = 64;

struct Span {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

// Queries `i` against keys `j`; scores are stored [query][kKeyTile].
struct AttentionTile {
  Span i, j;

  // Columns of the tile that query i.begin + row of batch row b sees; empty when end <= begin.
  Span Visible(const AttentionConfig& c, int64_t b, int64_t row) const {
    return {std::max(c.FirstKey(b, i.begin + row), j.begin) - j.begin,
            std::min(c.EndKey(i.begin + row), j.end) - j.begin};
  }
};

// Tiles of queries lie within a run.
inline int64_t QueryTilesOfRun(const AttentionConfig& c) { return DivCeil(c.run(), kQueryTile); }
inline int64_t QueryTileCount(const AttentionConfig& c) { return c.rows.runs() * QueryTilesOfRun(c); }
inline Span QueryTile(const AttentionConfig& c, int64_t index) {
  const int64_t of_run = QueryTilesOfRun(c), first = index / of_run * c.run(), begin = first + index % of_run * kQueryTile;
  return {begin, std::min(first + c.run(), begin + kQueryTile)};
}
inline Span KeyTile(const AttentionConfig& c, int64_t index) {
  return {index * kKeyTile, std::min(c.keys, (index + 1) * kKeyTile)};
}
// Key tiles that some query of `i` sees.
inline Span KeyTiles(const AttentionConfig& c, int64_t b, Span i) {
  return {c.FirstKey(b, i.begin) / kKeyTile, DivCeil(c.EndKey(i.end - 1), kKeyTile)};
}
// The position after the last that starts before key `end`: starts do not fall.
inline int64_t StartedBefore(const AttentionConfig& c, int64_t b, int64_t end) {
  if (c.starts == nullptr) return c.keys;
  const int64_t* row = c.starts + b * c.keys;
  return std::lower_bound(row, row + c.keys, end) - row;
}
// Query tiles of a run that see some key of `j`.
inline Span QueryTiles(const AttentionConfig& c, int64_t b, Span j, int64_t of_run) {
  const int64_t last = StartedBefore(c, b, j.end), first = c.FirstPosition(of_run);
  const int64_t end = std::min(c.window > 0 ? std::min(last, j.end - 1 + c.window) : last, first + c.run());
  const int64_t begin = std::max(c.causal ? j.begin : 0, first), tile = of_run * QueryTilesOfRun(c);
  if (end <= begin) return {tile, tile};
  return {tile + (begin - first) / kQueryTile, tile + DivCeil(end - first, kQueryTile)};
}

// 0, n-1, 1, n-2, ...: contiguous shares of a causal sequence of tiles then cost about the same.
inline int64_t Folded(int64_t index, int64_t n) {
  return index % 2 == 0 ? index / 2 : n - 1 - index / 2;
}

// Of a launch whose input `starts` holds the starts, when it is there. Throws InvalidArgument naming one that is out of place.
AttentionConfig ConfigOf(const KernelContext& c, size_t starts);

// scores[row][column] = capped scaled q . k where visible, 0 elsewhere.
void TileScores(const AttentionConfig& c, const float* q, const float* k, int64_t b, int64_t h,
                const AttentionTile& tile, float* scores);

}  // namespace weir
