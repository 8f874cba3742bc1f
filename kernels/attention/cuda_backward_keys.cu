#include <type_traits>

#include "kernels/attention/cuda_tensor.h"
#include "kernels/attention/cuda_tile.cuh"
#include "kernels/device/launch.cuh"

namespace weir::cuda {
namespace {

// A block per tile of keys of a kv head: dk and dv over (head of the group, tile of queries) in order.
template <class T, int kChunks>
__global__ void __launch_bounds__(kTileThreads)
    AttentionKeyGradientKernel(AttentionShape s, AttentionArrays a, AttentionGradients g) {
  __shared__ TileBuffer buffer;
  __shared__ TileScores p, ds;
  const int64_t j = static_cast<int64_t>(blockIdx.x) * kTile, kv = blockIdx.y, batch = blockIdx.z;
  const int64_t group = s.q_heads / s.kv_heads;
  float dk[kChunks][kSide][kSide] = {}, dv[kChunks][kSide][kSide] = {};
  for (int64_t head = kv * group; head < (kv + 1) * group; ++head) {
    for (int64_t run = 0; run < s.runs; ++run) {
      const TileSpan tiles = QueryTilesOf(s, run, j);
      for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
        const QueryTile i = QueryTileAt(s, run, tile);
        if (StartOf(s, a, batch, i.position) >= j + kTile) break;  // later queries start no earlier
        TileGradient<T>(s, a, g, {batch, head, i, j}, buffer, p, ds);
        AddWeighted<true>(p, RowsOf<T>(s, g.dy, batch, i, head, s.dv), s.dv, buffer, dv);
        AddWeighted<true>(ds, RowsOf<T>(s, a.q, batch, i, head, s.d), s.d, buffer, dk);
      }
    }
  }
  const float one[kSide] = {1, 1, 1, 1};
  const int64_t row = (batch * s.keys + j) * s.kv_heads + kv;
  const int rows = RowsOfTile(j, s.keys);
  StoreRows(dk, one, static_cast<T*>(g.dk) + row * s.d, s.kv_heads * s.d, rows, s.d);
  StoreRows(dv, one, static_cast<T*>(g.dv) + row * s.dv, s.kv_heads * s.dv, rows, s.dv);
}

template <class T>
__global__ void AddKeyRowsKernel(KeyRows r, const T* from, T* to) {
  const int64_t row_size = r.rows * r.width, count = r.batch * row_size;
  for (int64_t k = FirstIndex(); k < count; k += IndexStride()) {
    const int64_t batch = k / row_size, at = k - batch * row_size, row = at / r.width;
    const bool kept = r.kept.begin <= row && row < r.kept.end, added = r.added.begin <= row && row < r.added.end;
    if (kept && !added) continue;
    float sum = kept ? ToFloat(to[k]) : 0.0f;
    if (added) sum += ToFloat(from[(batch * (r.added.end - r.added.begin) - r.added.begin) * r.width + at]);
    to[k] = FromFloat<T>(sum);
  }
}

}  // namespace

void AddKeyRows(DType dtype, const KeyRows& rows, const void* from, void* to, CUstream_st* stream) {
  const int64_t count = rows.batch * rows.rows * rows.width;
  if (count == 0) return;
  WithFloatType(dtype, [&](auto type) {
    using T = decltype(type);
    AddKeyRowsKernel<T><<<BlocksFor(count), kThreads, 0, stream>>>(rows, static_cast<const T*>(from), static_cast<T*>(to));
  });
}

void AttentionKeyGradient(const AttentionShape& s, const AttentionArrays& a,
                          const AttentionGradients& g, CUstream_st* stream) {
  if (s.batch * s.keys * s.q_heads == 0) return;
  if (SuitsTensorCores(s, a, g)) return TensorKeyGradient(s, a, g, stream);
  WithFloatType(a.dtype, [&](auto type) {
    WithChunks(max(s.d, s.dv), [&](auto chunks) {
      AttentionKeyGradientKernel<decltype(type), decltype(chunks)::value>
          <<<KeyGrid(s), kTileThreads, 0, stream>>>(s, a, g);
    });
  });
}

}  // namespace weir::cuda
