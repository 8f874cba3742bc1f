#include <cmath>
#include <type_traits>

#include "kernels/attention/cuda_tensor.h"
#include "kernels/attention/cuda_tile.cuh"

namespace weir::cuda {
namespace {

// Running maximum and sum of a tile of queries, and what the last tile of keys made of them.
struct RunningSoftmax {
  float top[kTile], sum[kTile], correction[kTile];
};

// scores -> exp(scores - top). Four threads share a row.
__device__ void Exponentiate(TileScores& scores, RunningSoftmax& state) {
  constexpr int kParts = kTileThreads / kTile;
  const int row = static_cast<int>(threadIdx.x) / kParts,
            part = static_cast<int>(threadIdx.x) % kParts;
  float top = -INFINITY;
  for (int j = part; j < kTile; j += kParts) top = fmaxf(top, scores[row][j]);
  for (int lane = kParts / 2; lane > 0; lane /= 2)
    top = fmaxf(top, __shfl_xor_sync(~0u, top, lane));
  const float before = state.top[row], joined = fmaxf(before, top);
  const float base = joined == -INFINITY ? 0.0f : joined;  // no key seen yet
  float sum = 0;
  for (int j = part; j < kTile; j += kParts) sum += scores[row][j] = expf(scores[row][j] - base);
  for (int lane = kParts / 2; lane > 0; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
  __syncwarp();
  if (part != 0) return;
  const float correction = expf(before - base);
  state.correction[row] = correction;
  state.sum[row] = fmaf(state.sum[row], correction, sum);
  state.top[row] = joined;
}

template <class T, int kChunks>
__global__ void __launch_bounds__(kTileThreads)
    AttentionForwardKernel(AttentionShape s, AttentionArrays a) {
  __shared__ TileBuffer buffer;
  __shared__ TileScores scores;
  __shared__ RunningSoftmax state;
  const TileThread at;
  const QueryTile i = QueryTileAt(s, gridDim.x - 1 - blockIdx.x);  // the longest rows first
  const int64_t head = blockIdx.y, batch = blockIdx.z, kv = KvHead(s, head);
  const int lane = static_cast<int>(threadIdx.x);
  if (lane < kTile) {
    state.top[lane] = a.sinks != nullptr ? a.sinks[head] : -INFINITY;
    state.sum[lane] = a.sinks != nullptr ? 1.0f : 0.0f;
  }
  float y[kChunks][kSide][kSide] = {};
  const auto q = RowsOf<T>(s, a.q, batch, i, head, s.d);
  const TileSpan tiles = KeyTilesOf(s, i, StartOf(s, a, batch, i.position));
  int64_t start[kSide];
#pragma unroll
  for (int r = 0; r < kSide; ++r) start[r] = StartOf(s, a, batch, i.position + at.row + r);
  for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
    const int64_t j = tile * kTile;
    float product[kSide][kSide];
    MultiplyRows(q, KeyRowsOf<T>(s, a.k, batch, j, kv, s.d), s.d, buffer, product);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kSide; ++r) {
#pragma unroll
      for (int c = 0; c < kSide; ++c) {
        const bool visible = Visible(s, start[r], i, at.row + r, j + at.column + c);
        scores[at.row + r][at.column + c] = visible ? CapScore(s, product[r][c]) : -INFINITY;
      }
    }
    __syncthreads();
    Exponentiate(scores, state);
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kChunks; ++n) {
#pragma unroll
      for (int r = 0; r < kSide; ++r) {
#pragma unroll
        for (int c = 0; c < kSide; ++c) y[n][r][c] *= state.correction[at.row + r];
      }
    }
    AddWeighted<false>(scores, KeyRowsOf<T>(s, a.v, batch, j, kv, s.dv), s.dv, buffer, y);
  }
  __syncthreads();
  float inverse[kSide];
#pragma unroll
  for (int r = 0; r < kSide; ++r) inverse[r] = 1.0f / state.sum[at.row + r];
  T* out = static_cast<T*>(a.y) + ((batch * s.queries + i.row) * s.q_heads + head) * s.dv;
  StoreRows(y, inverse, out, s.q_heads * s.dv, i.rows, s.dv);
  if (a.lse != nullptr && lane < i.rows) {
    a.lse[(batch * s.q_heads + head) * s.queries + i.row + lane] =
        state.top[lane] + logf(state.sum[lane]);
  }
}

}  // namespace

void AttentionForward(const AttentionShape& s, const AttentionArrays& a, CUstream_st* stream) {
  if (s.batch * s.queries * s.q_heads == 0) return;
  if (SuitsTensorCores(s, a)) return TensorForward(s, a, stream);
  WithFloatType(a.dtype, [&](auto type) {
    WithChunks(s.dv, [&](auto chunks) {
      AttentionForwardKernel<decltype(type), decltype(chunks)::value>
          <<<QueryGrid(s), kTileThreads, 0, stream>>>(s, a);
    });
  });
}

}  // namespace weir::cuda
