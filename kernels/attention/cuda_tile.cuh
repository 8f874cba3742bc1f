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

// Tiles have `size` rows; the float32 kernels' are 64.
__host__ __device__ inline int64_t TilesOf(int64_t rows, int size = kTile) { return (rows + size - 1) / size; }
__device__ inline int RowsOfTile(int64_t first, int64_t end, int size = kTile) {
  return static_cast<int>(min(static_cast<int64_t>(size), end - first));
}

// A tile of queries, within a run: rows [row, row + rows) of the arrays, the first of them at `position` of the sequence.
struct QueryTile {
  int64_t row, position;
  int rows;
};
template <int kSize = kTile>
__device__ inline QueryTile QueryTileAt(const AttentionShape& s, int64_t run, int64_t tile) {
  const int64_t first = tile * kSize;
  return {run * s.run + first, s.first[run] + first, RowsOfTile(first, s.run, kSize)};
}
// Of all runs' tiles.
template <int kSize = kTile>
__device__ inline QueryTile QueryTileAt(const AttentionShape& s, int64_t tile) {
  const int64_t of_run = TilesOf(s.run, kSize);
  return QueryTileAt<kSize>(s, tile / of_run, tile % of_run);
}

// Queries against keys [j, j + 64) of one head.
struct TileAt {
  int64_t batch, head;
  QueryTile i;
  int64_t j;
};

// Of the document of the query at `position`. One that lies after it would leave the query without a key.
__device__ inline int64_t StartOf(const AttentionShape& s, const AttentionArrays& a, int64_t batch, int64_t position) {
  return a.starts == nullptr || position >= s.keys ? 0 : min(a.starts[batch * s.keys + position], position);
}
// Whether a query of the tile sees key j.
__device__ inline bool Visible(const AttentionShape& s, int64_t start, const QueryTile& i, int row, int64_t j) {
  const int64_t position = i.position + row;
  return row < i.rows && j < s.keys && (!s.causal || j <= position) &&
         (s.window == 0 || position - j < s.window) && start <= j;
}
__device__ inline int64_t KvHead(const AttentionShape& s, int64_t head) {
  return head / (s.q_heads / s.kv_heads);
}

// Of head `head` of an array [B,S,heads,channels], S the queries or the keys: a tile's rows.
template <class T>
__device__ HeadRows<T> RowsOf(const AttentionShape& s, const void* array, int64_t batch,
                              const QueryTile& i, int64_t head, int64_t channels) {
  return {static_cast<const T*>(array) + ((batch * s.queries + i.row) * s.q_heads + head) * channels,
          s.q_heads * channels, i.rows};
}
template <class T>
__device__ HeadRows<T> KeyRowsOf(const AttentionShape& s, const void* array, int64_t batch,
                                 int64_t first, int64_t kv_head, int64_t channels, int size = kTile) {
  return {static_cast<const T*>(array) + ((batch * s.keys + first) * s.kv_heads + kv_head) * channels,
          s.kv_heads * channels, RowsOfTile(first, s.keys, size)};
}

__device__ inline float CapScore(const AttentionShape& s, float product) {
  const float score = product * s.scale;
  return s.softcap > 0 ? s.softcap * tanhf(score / s.softcap) : score;
}

// Key tiles [begin, end) that some query of the tile sees, in tiles (start: that of its first query); and query tiles of
// a run that see some of the `keys` keys from j.
struct TileSpan {
  int64_t begin, end;
};
__device__ inline TileSpan KeyTilesOf(const AttentionShape& s, const QueryTile& i, int64_t start) {
  const int64_t first = s.window > 0 ? max(start, i.position - s.window + 1) : start;
  return {first / kTile, TilesOf(s.causal ? i.position + i.rows : s.keys)};
}
__device__ inline TileSpan QueryTilesOf(const AttentionShape& s, int64_t run, int64_t j, int keys = kTile) {
  const int64_t first = s.first[run], run_end = first + s.run, last_key = min(s.keys, j + keys) - 1;
  const int64_t begin = max(s.causal ? j : 0, first), end = s.window > 0 ? min(run_end, last_key + s.window) : run_end;
  if (end <= begin) return {0, 0};
  return {(begin - first) / kTile, TilesOf(end - first)};
}

// p and ds of a tile from scratch, into shared memory; zero where a query does not see a key.
template <class T>
__device__ void TileGradient(const AttentionShape& s, const AttentionArrays& a,
                             const AttentionGradients& g, const TileAt& tile, TileBuffer& buffer,
                             TileScores& p, TileScores& ds) {
  const TileThread at;
  const int64_t kv = KvHead(s, tile.head);
  float score[kSide][kSide], dp[kSide][kSide];
  MultiplyRows(RowsOf<T>(s, a.q, tile.batch, tile.i, tile.head, s.d),
               KeyRowsOf<T>(s, a.k, tile.batch, tile.j, kv, s.d), s.d, buffer, score);
  MultiplyRows(RowsOf<T>(s, g.dy, tile.batch, tile.i, tile.head, s.dv),
               KeyRowsOf<T>(s, a.v, tile.batch, tile.j, kv, s.dv), s.dv, buffer, dp);
#pragma unroll
  for (int r = 0; r < kSide; ++r) {
    const int i = at.row + r;
    const int64_t row = (tile.batch * s.q_heads + tile.head) * s.queries + tile.i.row + i;
    const bool live = i < tile.i.rows;
    const int64_t start = StartOf(s, a, tile.batch, tile.i.position + i);
    const float lse = live ? a.lse[row] : 0.0f, delta = live ? g.delta[row] : 0.0f;
#pragma unroll
    for (int c = 0; c < kSide; ++c) {
      const bool visible = Visible(s, start, tile.i, i, tile.j + at.column + c);
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

inline dim3 TileGrid(const AttentionShape& s, int64_t tiles, int64_t heads) {
  return dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(heads), static_cast<unsigned>(s.batch));
}
inline dim3 QueryGrid(const AttentionShape& s, int size = kTile) {
  return TileGrid(s, s.runs * TilesOf(s.run, size), s.q_heads);
}
inline dim3 KeyGrid(const AttentionShape& s, int size = kTile) { return TileGrid(s, TilesOf(s.keys, size), s.kv_heads); }

}  // namespace weir::cuda
