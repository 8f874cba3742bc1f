#include <type_traits>

#include "kernels/attention/cuda_tensor.h"
#include "kernels/attention/cuda_tensor_gradient.cuh"

namespace weir::cuda {
namespace {

// A block per kRowTiles tiles of queries of a head: dq over tiles of keys in order.
template <int kWidth, int kRowTiles>
__global__ void __launch_bounds__(kTensorThreads, 2)
    TensorQueryGradientKernel(const __grid_constant__ AttentionShape s,
                              const __grid_constant__ AttentionArrays a,
                              const __grid_constant__ AttentionGradients g) {
  constexpr int kSize = kTile * kWidth, kRows = kRowTiles * kTile;
  auto* q = reinterpret_cast<BFloat16*>(tensor_shared);
  BFloat16 *dy = q + kRowTiles * kSize, *k = dy + kRowTiles * kSize, *v = k + 2 * kSize;
  const QueryTile i = QueryTileAt<kRows>(s, gridDim.x - 1 - blockIdx.x);  // the longest rows first
  const int64_t head = blockIdx.y, batch = blockIdx.z, kv = KvHead(s, head);
  const int d = static_cast<int>(s.d), dv = static_cast<int>(s.dv);
  const TileSpan tiles = KeyTilesOf(s, i, StartOf(s, a, batch, i.position));
  const auto fetch = [&](int64_t tile) {
    const int at = static_cast<int>(tile % 2) * kSize;
    FetchRows<kWidth>(KeyRowsOf<BFloat16>(s, a.k, batch, tile * kTile, kv, d), d, k + at);
    FetchRows<kWidth>(KeyRowsOf<BFloat16>(s, a.v, batch, tile * kTile, kv, dv), dv, v + at);
  };
  FetchTiles<kWidth, kRowTiles>(RowsOf<BFloat16>(s, a.q, batch, i, head, d), d, q);
  FetchTiles<kWidth, kRowTiles>(RowsOf<BFloat16>(s, g.dy, batch, i, head, dv), dv, dy);
  if (tiles.begin < tiles.end) fetch(tiles.begin);
  CommitCopies();

  const Scores scores(s);
  KeySpan keys[kRowTiles][2];
  CommonKeys common[kRowTiles];
  float lse[kRowTiles][2] = {}, delta[kRowTiles][2] = {};
  const int64_t stats = (batch * s.q_heads + head) * s.queries + i.row;
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
    const int first = t * kTile;
    common[t] = {KeysOf(s, a, batch, i, first + Lane()), KeysOf(s, a, batch, i, first + 32 + Lane())};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + RowOf(half);
      keys[t][half] = KeysOf(s, a, batch, i, row);
      if (row >= i.rows) continue;
      lse[t][half] = a.lse[stats + row] * kLog2E;
      delta[t][half] = g.delta[stats + row];
    }
  }
  Blocks<kWidth / 8> dq[kRowTiles] = {};
  for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
    WaitForRows();
    if (tile + 1 < tiles.end) fetch(tile + 1);
    CommitCopies();
    const int key = static_cast<int>(tile) * kTile, at = static_cast<int>(tile % 2) * kSize;
    Weights ds[kRowTiles];
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      const auto lse_of = [&](int, int e) { return lse[t][e / 2]; };
      TileBlocks c, dp;
      MultiplyRows<kWidth>(q + t * kSize, k + at, c);
      MultiplyRows<kWidth>(dy + t * kSize, v + at, dp);
      AwaitProducts<1>(c);
      scores.Prepare(c);
      if (!common[t].Cover(key))
        Hide([&](int n, int e) { return keys[t][e / 2].Has(key + ColumnOf(n, e)); }, c);
      Exponentiate(scores, lse_of, c);
      AwaitProducts<0>(dp);
      Differentiate(
          scores, lse_of, [&](int, int e) { return delta[t][e / 2]; }, c, dp);
      PackWeights(dp, ds[t]);
      AddWeighted<kWidth>(ds[t], k + at, dq[t]);
    }
    AwaitProducts<0>(dq);
  }
  BFloat16* out = static_cast<BFloat16*>(g.dq) + ((batch * s.queries + i.row) * s.q_heads + head) * d;
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
    const int first = t * kTile;
    StoreBlocks<kWidth / 8>(dq[t], {s.scale, s.scale}, out + first * s.q_heads * d, s.q_heads * d,
                            i.rows - first, d);
  }
}

}  // namespace

bool SuitsTensorCores(const AttentionShape& s, const AttentionArrays& a, const AttentionGradients& g) {
  return SuitsTensorCores(s, a) && IsAligned(g.dy) && IsAligned(g.dq) && IsAligned(g.dk) && IsAligned(g.dv);
}

void TensorQueryGradient(const AttentionShape& s, const AttentionArrays& a, const AttentionGradients& g,
                         CUstream_st* stream) {
  WithWidth(s, [&](auto width) {
    constexpr int kWidth = decltype(width)::value, kRowTiles = kWidth == 64 ? 2 : 1;
    constexpr int kTiles = 2 * kRowTiles + 2 * 2;  // q, dy; k and v twice
    LaunchTiles(TensorQueryGradientKernel<kWidth, kRowTiles>, QueryGrid(s, kRowTiles * kTile),
                kTiles * kTile * kWidth * 2, stream, s, a, g);
  });
}

}  // namespace weir::cuda
