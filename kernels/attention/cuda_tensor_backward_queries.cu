#include <type_traits>

#include "kernels/attention/cuda_tensor.h"
#include "kernels/attention/cuda_tensor_gradient.cuh"

namespace weir::cuda {
namespace {

template <int kWidth>
struct Sizes {
  static constexpr int kRowTiles = kWidth == 64 ? 2 : 1, kRows = kTensorWarps * 16 * kRowTiles,
                       kTileSize = kColumns * kWidth;
  static constexpr int kAtOnce = kWidth <= 128 ? 64 : 32;  // columns of a product, as registers allow
  static constexpr int kBytes = 2 * (2 * kRows * kWidth + 4 * kTileSize);
};

// A block per tile of queries of a head: dq of a warp's rows over tiles of keys in order.
template <int kWidth>
__global__ void __launch_bounds__(kTensorThreads)
    TensorQueryGradientKernel(const __grid_constant__ AttentionShape s,
                              const __grid_constant__ AttentionArrays a,
                              const __grid_constant__ AttentionGradients g) {
  using Size = Sizes<kWidth>;
  constexpr int kRowTiles = Size::kRowTiles, kAtOnce = Size::kAtOnce;
  auto* q = reinterpret_cast<BFloat16*>(tensor_shared);
  BFloat16 *dy = q + Size::kRows * kWidth, *k = dy + Size::kRows * kWidth, *v = k + 2 * Size::kTileSize;
  const QueryTile i = QueryTileAt<Size::kRows>(s, gridDim.x - 1 - blockIdx.x);  // the longest rows first
  const int64_t head = blockIdx.y, batch = blockIdx.z, kv = KvHead(s, head);
  const int d = static_cast<int>(s.d), dv = static_cast<int>(s.dv), first = Warp() * kRowTiles * 16;
  const TileSpan tiles = KeyTilesOf(s, i, StartOf(s, a, batch, i.position));
  const auto fetch = [&](int64_t tile) {
    const int at = static_cast<int>(tile % 2) * Size::kTileSize;
    FetchRows<kColumns, kWidth>(KeyRowsOf<BFloat16>(s, a.k, batch, tile * kColumns, kv, d), d, k + at);
    FetchRows<kColumns, kWidth>(KeyRowsOf<BFloat16>(s, a.v, batch, tile * kColumns, kv, dv), dv, v + at);
  };
  FetchRows<Size::kRows, kWidth>(RowsOf<BFloat16>(s, a.q, batch, i, head, d), d, q);
  FetchRows<Size::kRows, kWidth>(RowsOf<BFloat16>(s, g.dy, batch, i, head, dv), dv, dy);
  if (tiles.begin < tiles.end) fetch(tiles.begin);
  CommitCopies();

  const Scores scores(s);
  KeySpan keys[kRowTiles][2];
  WarpKeys seen;
  float lse[kRowTiles][2], delta[kRowTiles][2];
  const int64_t stats = (batch * s.q_heads + head) * s.queries + i.row;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + m * 16 + half * 8 + Lane() / 4;
      const bool live = row < i.rows;
      keys[m][half] = KeysOf(s, a, batch, i, row);
      seen.Add(keys[m][half]);
      lse[m][half] = live ? a.lse[stats + row] * kLog2E : 0.0f;
      delta[m][half] = live ? g.delta[stats + row] : 0.0f;
    }
  }
  seen.Join();
  Blocks<kRowTiles, kWidth / 8> dq = {};
  for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
    WaitForCopies<0>();
    __syncthreads();
    if (tile + 1 < tiles.end) fetch(tile + 1);
    CommitCopies();
    const int at = static_cast<int>(tile % 2) * Size::kTileSize;
#pragma unroll 1
    for (int column = 0; column < kColumns; column += kAtOnce) {
      const int key = static_cast<int>(tile) * kColumns + column;
      if (seen.Misses(key, kAtOnce)) continue;
      Blocks<kRowTiles, kAtOnce / 8> c, dp;
      MultiplyRows<kWidth>(q, first, k + at, column, c);
      MultiplyRows<kWidth>(dy, first, v + at, column, dp);
      scores.Prepare(c);
      if (!seen.Covers(key, kAtOnce)) {
        Hide([&](int m, int n, int e) { return keys[m][e / 2].Has(key + n * 8 + Lane() % 4 * 2 + e % 2); },
             c);
      }
      DifferentiateScores(
          scores, [&](int m, int, int e) { return lse[m][e / 2]; },
          [&](int m, int, int e) { return delta[m][e / 2]; }, c, dp);
      Weights<kRowTiles, kAtOnce / 16> ds;
      PackWeights(dp, ds);
      AddWeighted<kWidth>(ds, k + at, column, dq);
    }
  }
  BFloat16* out = static_cast<BFloat16*>(g.dq) + ((batch * s.queries + i.row) * s.q_heads + head) * d;
  StoreBlocks(
      dq, [&](int, int) { return s.scale; }, out, s.q_heads * d, i.rows, d);
}

}  // namespace

bool SuitsTensorCores(const AttentionShape& s, const AttentionArrays& a, const AttentionGradients& g) {
  return SuitsTensorCores(s, a) && IsAligned(g.dy) && IsAligned(g.dq) && IsAligned(g.dk) && IsAligned(g.dv);
}

void TensorQueryGradient(const AttentionShape& s, const AttentionArrays& a, const AttentionGradients& g,
                         CUstream_st* stream) {
  WithWidth(s, [&](auto width) {
    using Size = Sizes<decltype(width)::value>;
    LaunchTiles(TensorQueryGradientKernel<decltype(width)::value>, QueryGrid(s, Size::kRows), Size::kBytes,
                stream, s, a, g);
  });
}

}  // namespace weir::cuda
