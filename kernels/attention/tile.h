#pragma once
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

  // Columns of the tile that query i.begin + row sees; empty when end <= begin.
  Span Visible(const AttentionConfig& c, int64_t row) const {
    return {std::max(c.FirstKey(i.begin + row), j.begin) - j.begin,
            std::min(c.EndKey(i.begin + row), j.end) - j.begin};
  }
};

inline Span QueryTile(const AttentionConfig& c, int64_t index) {
  return {index * kQueryTile, std::min(c.sequence, (index + 1) * kQueryTile)};
}
inline Span KeyTile(const AttentionConfig& c, int64_t index) {
  return {index * kKeyTile, std::min(c.sequence, (index + 1) * kKeyTile)};
}
// Key tiles that some query of `i` sees.
inline Span KeyTiles(const AttentionConfig& c, Span i) {
  return {c.FirstKey(i.begin) / kKeyTile, DivCeil(c.EndKey(i.end - 1), kKeyTile)};
}
// Query tiles that see some key of `j`.
inline Span QueryTiles(const AttentionConfig& c, Span j) {
  const int64_t end = c.window > 0 ? std::min(c.sequence, j.end - 1 + c.window) : c.sequence;
  return {(c.causal ? j.begin : 0) / kQueryTile, DivCeil(end, kQueryTile)};
}

// 0, n-1, 1, n-2, ...: contiguous shares of a causal sequence of tiles then cost about the same.
inline int64_t Folded(int64_t index, int64_t n) {
  return index % 2 == 0 ? index / 2 : n - 1 - index / 2;
}

// scores[row][column] = capped scaled q . k where visible, 0 elsewhere.
void TileScores(const AttentionConfig& c, const float* q, const float* k, int64_t b, int64_t h,
                const AttentionTile& tile, float* scores);

}  // namespace weir
