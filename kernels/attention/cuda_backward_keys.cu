#include <type_traits>

#include "kernels/attention/cuda_tile.cuh"

namespace weir::cuda {
namespace {

// A block per tile of keys of a kv head: dk and dv over (head of the group, tile of queries) in
// order.
template <class T, int kChunks>
__global__ void __launch_bounds__(kTileThreads)
    AttentionKeyGradientKernel(AttentionShape s, AttentionArrays a, AttentionGradients g) {
  __shared__ TileBuffer buffer;
  __shared__ TileScores p, ds;
  const int64_t j = static_cast<int64_t>(blockIdx.x) * kTile, kv = blockIdx.y, batch = blockIdx.z;
  const int64_t group = s.q_heads / s.kv_heads;
  float dk[kChunks][kSide][kSide] = {}, dv[kChunks][kSide][kSide] = {};
  const TileSpan tiles = QueryTilesOf(s, j);
  for (int64_t head = kv * group; head < (kv + 1) * group; ++head) {
    for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
      const int64_t i = tile * kTile;
      if (StartOf(s, a, batch, i) >= j + kTile) break;  // later queries start no earlier
      TileGradient<T>(s, a, g, {batch, head, i, j}, buffer, p, ds);
      AddWeighted<true>(p, RowsOf<T>(s, g.dy, batch, i, head, s.q_heads, s.dv), s.dv, buffer, dv);
      AddWeighted<true>(ds, RowsOf<T>(s, a.q, batch, i, head, s.q_heads, s.d), s.d, buffer, dk);
    }
  }
  const float one[kSide] = {1, 1, 1, 1};
  const int64_t row = (batch * s.sequence + j) * s.kv_heads + kv;
  StoreRows(dk, one, static_cast<T*>(g.dk) + row * s.d, s.kv_heads * s.d, RowsFrom(s, j), s.d);
  StoreRows(dv, one, static_cast<T*>(g.dv) + row * s.dv, s.kv_heads * s.dv, RowsFrom(s, j), s.dv);
}

}  // namespace

void AttentionKeyGradient(const AttentionShape& s, const AttentionArrays& a,
                          const AttentionGradients& g, CUstream_st* stream) {
  if (s.batch * s.sequence * s.q_heads == 0) return;
  WithFloatType(a.dtype, [&](auto type) {
    WithChunks(max(s.d, s.dv), [&](auto chunks) {
      AttentionKeyGradientKernel<decltype(type), decltype(chunks)::value>
          <<<TileGrid(s, s.kv_heads), kTileThreads, 0, stream>>>(s, a, g);
    });
  });
}

}  // namespace weir::cuda
