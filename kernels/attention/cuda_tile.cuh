// Tiles of 64 queries x 64 keys worked on by 256 threads; a thread owns 4 x 4 elements.
#pragma once
#include "kernels/attention/cuda.h"
#include "kernels/device/numbers.cuh"

namespace weir::cuda {

inline constexpr int kTile = 64, kSide = 4, kTileThreads = 256;
inline constexpr int kStride = kTile + 4;  // of a tile's rows in shared memory
inline constexpr int kStep = 16;           // channels of a product at a time

using TileScores = float[kTile][kStride];
// Two operands of kStep channels, or 2 * kStep rows of 64 columns.
using TileBuffer = float[2 * kStep][kStride];

// Rows [0, rows) of one head: row r starts at data + r * stride.
template <class T>
struct HeadRows {
  const T* data;
  int64_t stride;
  int rows;

  __device__ float At(int row, int64_t channel, int64_t channels) const {
    return row < rows && channel < channels ? ToFloat(data[row * stride + channel]) : 0.0f;
  }
};

struct TileThread {
  int row, column;
  __device__ TileThread()
      : row(static_cast<int>(threadIdx.x) / 16 * kSide),
        column(static_cast<int>(threadIdx.x) % 16 * kSide) {}
};

// out[r][c] = a row (row + r) . b row (column + c), channels in order.
template <class T>
__device__ void MultiplyRows(const HeadRows<T>& a, const HeadRows<T>& b, int64_t channels,
                             TileBuffer& buffer, float (&out)[kSide][kSide]) {
  const TileThread at;
#pragma unroll
  for (int r = 0; r < kSide; ++r) {
#pragma unroll
    for (int c = 0; c < kSide; ++c) out[r][c] = 0;
  }
  for (int64_t first = 0; first < channels; first += kStep) {
    __syncthreads();
    for (int e = static_cast<int>(threadIdx.x); e < kTile * kStep; e += kTileThreads) {
      const int row = e / kStep, channel = e % kStep;
      buffer[channel][row] = a.At(row, first + channel, channels);
      buffer[kStep + channel][row] = b.At(row, first + channel, channels);
    }
    __syncthreads();
#pragma unroll
    for (int p = 0; p < kStep; ++p) {
#pragma unroll
      for (int r = 0; r < kSide; ++r) {
#pragma unroll
        for (int c = 0; c < kSide; ++c) {
          out[r][c] = fmaf(buffer[p][at.row + r], buffer[kStep + p][at.column + c], out[r][c]);
        }
      }
    }
  }
}

// sum[n][r][c] += sum over i of w(i, row + r) * x(i, 64 n + column + c), i in order; w is
// weights[row][i], or weights[i][row] when kByColumn.
template <bool kByColumn, int kChunks, class T>
__device__ void AddWeighted(const TileScores& weights, const HeadRows<T>& x, int64_t channels,
                            TileBuffer& buffer, float (&sum)[kChunks][kSide][kSide]) {
  const TileThread at;
#pragma unroll
  for (int n = 0; n < kChunks; ++n) {
    if (n * kTile >= channels) continue;
    for (int first = 0; first < x.rows; first += 2 * kStep) {
      __syncthreads();
      for (int e = static_cast<int>(threadIdx.x); e < 2 * kStep * kTile; e += kTileThreads) {
        buffer[e / kTile][e % kTile] = x.At(first + e / kTile, n * kTile + e % kTile, channels);
      }
      __syncthreads();
#pragma unroll 8
      for (int i = 0; i < 2 * kStep; ++i) {
#pragma unroll
        for (int r = 0; r < kSide; ++r) {
          const float w =
              kByColumn ? weights[first + i][at.row + r] : weights[at.row + r][first + i];
#pragma unroll
          for (int c = 0; c < kSide; ++c)
            sum[n][r][c] = fmaf(w, buffer[i][at.column + c], sum[n][r][c]);
        }
      }
    }
  }
}

// to row (row + r) = sum * factor[r], for rows and channels there are.
template <int kChunks, class T>
__device__ void StoreRows(const float (&sum)[kChunks][kSide][kSide], const float (&factor)[kSide],
                          T* to, int64_t stride, int rows, int64_t channels) {
  const TileThread at;
#pragma unroll
  for (int n = 0; n < kChunks; ++n) {
#pragma unroll
    for (int r = 0; r < kSide; ++r) {
#pragma unroll
      for (int c = 0; c < kSide; ++c) {
        const int64_t channel = n * kTile + at.column + c;
        if (at.row + r < rows && channel < channels) {
          to[(at.row + r) * stride + channel] = FromFloat<T>(sum[n][r][c] * factor[r]);
        }
      }
    }
  }
}

// Queries [i, i + 64) against keys [j, j + 64) of one head.
struct TileAt {
  int64_t batch, head, i, j;
};

// Of the document of query i. One that lies after it would leave the query without a key.
__device__ inline int64_t StartOf(const AttentionShape& s, const AttentionArrays& a, int64_t batch, int64_t i) {
  return a.starts == nullptr || i >= s.sequence ? 0 : min(a.starts[batch * s.sequence + i], i);
}
__device__ inline bool Visible(const AttentionShape& s, int64_t start, int64_t i, int64_t j) {
  return i < s.sequence && j < s.sequence && (!s.causal || j <= i) &&
         (s.window == 0 || i - j < s.window) && start <= j;
}
__device__ inline int RowsFrom(const AttentionShape& s, int64_t first) {
  return static_cast<int>(min(static_cast<int64_t>(kTile), s.sequence - first));
}
__device__ inline int64_t KvHead(const AttentionShape& s, int64_t head) {
  return head / (s.q_heads / s.kv_heads);
}

// Rows from `first` of head `head` of an array [B,S,heads,channels].
template <class T>
__device__ HeadRows<T> RowsOf(const AttentionShape& s, const void* array, int64_t batch,
                              int64_t first, int64_t head, int64_t heads, int64_t channels) {
  return {static_cast<const T*>(array) + ((batch * s.sequence + first) * heads + head) * channels,
          heads * channels, RowsFrom(s, first)};
}

__device__ inline float CapScore(const AttentionShape& s, float product) {
  const float score = product * s.scale;
  return s.softcap > 0 ? s.softcap * tanhf(score / s.softcap) : score;
}

// Key tiles [begin, end) that some query of the tile at i sees, in tiles (start: that of query i); and query tiles
// that see keys of the tile at j.
struct TileSpan {
  int64_t begin, end;
};
__device__ inline TileSpan KeyTilesOf(const AttentionShape& s, int64_t i, int64_t start) {
  const int64_t first = s.window > 0 ? max(start, i - s.window + 1) : start;
  const int64_t last = s.causal ? min(s.sequence, i + kTile) : s.sequence;
  return {first / kTile, (last + kTile - 1) / kTile};
}
__device__ inline TileSpan QueryTilesOf(const AttentionShape& s, int64_t j) {
  const int64_t last_key = min(s.sequence, j + kTile) - 1;
  const int64_t end = s.window > 0 ? min(s.sequence, last_key + s.window) : s.sequence;
  return {(s.causal ? j : 0) / kTile, (end + kTile - 1) / kTile};
}

// p and ds of a tile from scratch, into shared memory; zero where a query does not see a key.
template <class T>
__device__ void TileGradient(const AttentionShape& s, const AttentionArrays& a,
                             const AttentionGradients& g, const TileAt& tile, TileBuffer& buffer,
                             TileScores& p, TileScores& ds) {
  const TileThread at;
  const int64_t kv = KvHead(s, tile.head);
  float score[kSide][kSide], dp[kSide][kSide];
  MultiplyRows(RowsOf<T>(s, a.q, tile.batch, tile.i, tile.head, s.q_heads, s.d),
               RowsOf<T>(s, a.k, tile.batch, tile.j, kv, s.kv_heads, s.d), s.d, buffer, score);
  MultiplyRows(RowsOf<T>(s, g.dy, tile.batch, tile.i, tile.head, s.q_heads, s.dv),
               RowsOf<T>(s, a.v, tile.batch, tile.j, kv, s.kv_heads, s.dv), s.dv, buffer, dp);
#pragma unroll
  for (int r = 0; r < kSide; ++r) {
    const int64_t i = tile.i + at.row + r,
                  row = (tile.batch * s.q_heads + tile.head) * s.sequence + i;
    const bool live = i < s.sequence;
    const int64_t start = StartOf(s, a, tile.batch, i);
    const float lse = live ? a.lse[row] : 0.0f, delta = live ? g.delta[row] : 0.0f;
#pragma unroll
    for (int c = 0; c < kSide; ++c) {
      const bool visible = Visible(s, start, i, tile.j + at.column + c);
      const float capped = CapScore(s, score[r][c]), t = s.softcap > 0 ? capped / s.softcap : 0.0f;
      const float probability = visible ? expf(capped - lse) : 0.0f;
      p[at.row + r][at.column + c] = probability;
      ds[at.row + r][at.column + c] = probability * (dp[r][c] - delta) * ((1.0f - t * t) * s.scale);
    }
  }
  __syncthreads();
}

// Calls body with 1, 2 or 4: chunks of 64 channels that hold `channels`.
template <class Body>
void WithChunks(int64_t channels, const Body& body) {
  if (channels <= kTile) return body(std::integral_constant<int, 1>{});
  if (channels <= 2 * kTile) return body(std::integral_constant<int, 2>{});
  body(std::integral_constant<int, 4>{});
}

inline dim3 TileGrid(const AttentionShape& s, int64_t heads) {
  return dim3(static_cast<unsigned>((s.sequence + kTile - 1) / kTile), static_cast<unsigned>(heads),
              static_cast<unsigned>(s.batch));
}

}  // namespace weir::cuda
