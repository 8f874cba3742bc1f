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

inline Span QueryTile(const AttentionConfig& c, int64_t index) {
  return {index * kQueryTile, std::min(c.sequence, (index + 1) * kQueryTile)};
}
inline Span KeyTile(const AttentionConfig& c, int64_t index) {
  return {index * kKeyTile, std::min(c.sequence, (index + 1) * kKeyTile)};
}
// Key tiles that some query of `i` sees.
inline Span KeyTiles(const AttentionConfig& c, int64_t b, Span i) {
  return {c.FirstKey(b, i.begin) / kKeyTile, DivCeil(c.EndKey(i.end - 1), kKeyTile)};
}
// The query after the last that starts before key `end`: starts do not fall.
inline int64_t StartedBefore(const AttentionConfig& c, int64_t b, int64_t end) {
  if (c.starts == nullptr) return c.sequence;
  const int64_t* row = c.starts + b * c.sequence;
  return std::lower_bound(row, row + c.sequence, end) - row;
}
// Query tiles that see some key of `j`.
inline Span QueryTiles(const AttentionConfig& c, int64_t b, Span j) {
  const int64_t last = StartedBefore(c, b, j.end);
  const int64_t end = c.window > 0 ? std::min(last, j.end - 1 + c.window) : last;
  return {(c.causal ? j.begin : 0) / kQueryTile, DivCeil(end, kQueryTile)};
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
