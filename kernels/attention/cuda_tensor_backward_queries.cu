#include <type_traits>

#include "kernels/attention/cuda_tensor.h"
#include "kernels/attention/cuda_tensor_gradient.cuh"

namespace weir::cuda {
namespace {

// A block per tile of queries of a head: dq over tiles of keys in order.
template <int kWidth>
__global__ void __launch_bounds__(kTensorThreads, 2) TensorQueryGradientKernel(
    const __grid_constant__ AttentionShape s, const __grid_constant__ AttentionArrays a,
    const __grid_constant__ AttentionGradients g) {
  constexpr int kSize = kTile * kWidth;
  auto* q = reinterpret_cast<BFloat16*>(tensor_shared);
  BFloat16 *dy = q + kSize, *k = dy + kSize, *v = k + 2 * kSize;
  const QueryTile i = QueryTileAt(s, gridDim.x - 1 - blockIdx.x);  // the longest rows first
  const int64_t head = blockIdx.y, batch = blockIdx.z, kv = KvHead(s, head);
  const int d = static_cast<int>(s.d), dv = static_cast<int>(s.dv);
  const TileSpan tiles = KeyTilesOf(s, i, StartOf(s, a, batch, i.position));
  const auto fetch = [&](int64_t tile) {
    const int at = static_cast<int>(tile % 2) * kSize;
    FetchRows<kWidth>(KeyRowsOf<BFloat16>(s, a.k, batch, tile * kTile, kv, d), d, k + at);
    FetchRows<kWidth>(KeyRowsOf<BFloat16>(s, a.v, batch, tile * kTile, kv, dv), dv, v + at);
  };
  FetchRows<kWidth>(RowsOf<BFloat16>(s, a.q, batch, i, head, d), d, q);
  FetchRows<kWidth>(RowsOf<BFloat16>(s, g.dy, batch, i, head, dv), dv, dy);
  if (tiles.begin < tiles.end) fetch(tiles.begin);
  CommitCopies();

  const Scores scores(s);
  const KeySpan keys[2] = {KeysOf(s, a, batch, i, RowOf(0)), KeysOf(s, a, batch, i, RowOf(1))};
  const CommonKeys common(KeysOf(s, a, batch, i, Lane()), KeysOf(s, a, batch, i, 32 + Lane()));
  float lse[2] = {}, delta[2] = {};
  const int64_t stats = (batch * s.q_heads + head) * s.queries + i.row;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (RowOf(half) >= i.rows) continue;
    lse[half] = a.lse[stats + RowOf(half)] * kLog2E;
    delta[half] = g.delta[stats + RowOf(half)];
  }
  const auto lse_of = [&](int, int e) { return lse[e / 2]; };
  const auto delta_of = [&](int, int e) { return delta[e / 2]; };
  Blocks<kWidth / 8> dq = {};
  for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
    WaitForRows();
    if (tile + 1 < tiles.end) fetch(tile + 1);
    CommitCopies();
    const int key = static_cast<int>(tile) * kTile, at = static_cast<int>(tile % 2) * kSize;
    TileBlocks c, dp;
    MultiplyRows<kWidth>(q, k + at, c);
    MultiplyRows<kWidth>(dy, v + at, dp);
    AwaitProducts<1>(c);
    scores.Prepare(c);
    if (!common.Cover(key)) Hide([&](int n, int e) { return keys[e / 2].Has(key + ColumnOf(n, e)); }, c);
    Exponentiate(scores, lse_of, c);
    AwaitProducts<0>(dp);
    Differentiate(scores, lse_of, delta_of, c, dp);
    Weights ds;
    PackWeights(dp, ds);
    AddWeighted<kWidth>(ds, k + at, dq);
    AwaitProducts<0>(dq);
  }
  BFloat16* out = static_cast<BFloat16*>(g.dq) + ((batch * s.queries + i.row) * s.q_heads + head) * d;
  StoreBlocks<kWidth / 8>(dq, {s.scale, s.scale}, out, s.q_heads * d, i.rows, d);
}

}  // namespace

bool SuitsTensorCores(const AttentionShape& s, const AttentionArrays& a, const AttentionGradients& g) {
  return SuitsTensorCores(s, a) && IsAligned(g.dy) && IsAligned(g.dq) && IsAligned(g.dk) && IsAligned(g.dv);
}

void TensorQueryGradient(const AttentionShape& s, const AttentionArrays& a, const AttentionGradients& g,
                         CUstream_st* stream) {
  WithWidth(s, [&](auto width) {
    constexpr int kWidth = decltype(width)::value, kTiles = 2 + 2 * 2;  // q, dy; k and v twice
    LaunchTiles(TensorQueryGradientKernel<kWidth>, QueryGrid(s), kTiles * kTile * kWidth * 2, stream, s, a, g);
  });
}

}  // namespace weir::cuda
