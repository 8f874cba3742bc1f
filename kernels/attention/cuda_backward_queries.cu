#include <type_traits>

#include "kernels/attention/cuda_tensor.h"
#include "kernels/attention/cuda_tile.cuh"
#include "kernels/device/group.cuh"
#include "kernels/device/launch.cuh"

namespace weir::cuda {
namespace {

// A block per tile of queries of a head: dq over tiles of keys in order.
template <class T, int kChunks>
__global__ void __launch_bounds__(kTileThreads)
    AttentionQueryGradientKernel(AttentionShape s, AttentionArrays a, AttentionGradients g) {
  __shared__ TileBuffer buffer;
  __shared__ TileScores p, ds;
  const QueryTile i = QueryTileAt(s, gridDim.x - 1 - blockIdx.x);  // the longest rows first
  const int64_t head = blockIdx.y, batch = blockIdx.z;
  float dq[kChunks][kSide][kSide] = {};
  const TileSpan tiles = KeyTilesOf(s, i, StartOf(s, a, batch, i.position));
  for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
    const int64_t j = tile * kTile;
    TileGradient<T>(s, a, g, {batch, head, i, j}, buffer, p, ds);
    AddWeighted<false>(ds, KeyRowsOf<T>(s, a.k, batch, j, KvHead(s, head), s.d), s.d, buffer, dq);
  }
  const float one[kSide] = {1, 1, 1, 1};
  T* out = static_cast<T*>(g.dq) + ((batch * s.queries + i.row) * s.q_heads + head) * s.d;
  StoreRows(dq, one, out, s.q_heads * s.d, i.rows, s.d);
}

// delta[b,h,i] = dy . y; a warp per row.
template <class T>
__global__ void DeltaKernel(AttentionShape s, const T* y, const T* dy, float* delta) {
  const int64_t rows = s.batch * s.queries * s.q_heads, warps = IndexStride() / kWarp;
  for (int64_t row = FirstIndex() / kWarp; row < rows; row += warps) {
    float sum = 0;
    for (int64_t c = threadIdx.x % kWarp; c < s.dv; c += kWarp) {
      sum = fmaf(ToFloat(dy[row * s.dv + c]), ToFloat(y[row * s.dv + c]), sum);
    }
    sum = Reduce<kWarp>(sum, SumStep());
    const int64_t head = row % s.q_heads, token = row / s.q_heads;
    const int64_t at = (token / s.queries * s.q_heads + head) * s.queries + token % s.queries;
    if (threadIdx.x % kWarp == 0) delta[at] = sum;
  }
}

// dsinks[h] (+)= -sum over (b,i) of exp(sink - lse) * delta, in float64; a block per head.
__global__ void __launch_bounds__(kThreads)
    SinkGradientKernel(AttentionShape s, const float* sinks, const float* lse,
                       AttentionGradients g) {
  const int64_t head = blockIdx.x;
  double sum = 0;
  for (int64_t at = threadIdx.x; at < s.batch * s.queries; at += kThreads) {
    const int64_t row = (at / s.queries * s.q_heads + head) * s.queries + at % s.queries;
    sum -= static_cast<double>(expf(sinks[head] - lse[row])) * static_cast<double>(g.delta[row]);
  }
  sum = Reduce<kThreads>(sum, SumStep());
  if (threadIdx.x == 0)
    g.dsinks[head] = (g.add_dsinks ? g.dsinks[head] : 0.0f) + static_cast<float>(sum);
}

}  // namespace

void AttentionQueryGradient(const AttentionShape& s, const AttentionArrays& a,
                            const AttentionGradients& g, CUstream_st* stream) {
  if (s.batch * s.queries * s.q_heads == 0) return;
  if (SuitsTensorCores(s, a, g)) return TensorQueryGradient(s, a, g, stream);
  WithFloatType(a.dtype, [&](auto type) {
    WithChunks(s.d, [&](auto chunks) {
      AttentionQueryGradientKernel<decltype(type), decltype(chunks)::value>
          <<<QueryGrid(s), kTileThreads, 0, stream>>>(s, a, g);
    });
  });
}

void AttentionDelta(const AttentionShape& s, const AttentionArrays& a, const AttentionGradients& g,
                    CUstream_st* stream) {
  const int64_t rows = s.batch * s.queries * s.q_heads;
  if (rows == 0) return;
  WithFloatType(a.dtype, [&](auto type) {
    using T = decltype(type);
    DeltaKernel<T><<<BlocksFor(rows * kWarp), kThreads, 0, stream>>>(
        s, static_cast<const T*>(a.y), static_cast<const T*>(g.dy), g.delta);
  });
}

void AttentionSinkGradient(const AttentionShape& s, const AttentionArrays& a,
                           const AttentionGradients& g, CUstream_st* stream) {
  if (s.q_heads == 0) return;
  SinkGradientKernel<<<static_cast<unsigned>(s.q_heads), kThreads, 0, stream>>>(s, a.sinks, a.lse,
                                                                                g);
}

}  // namespace weir::cuda
