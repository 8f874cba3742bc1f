#include <type_traits>

#include "kernels/attention/cuda_fragments.cuh"
#include "kernels/attention/cuda_tensor.h"

namespace weir::cuda {
namespace {

template <int kWidth>
struct Sizes {
  static constexpr int kRowTiles = kWidth <= 128 ? 2 : 1, kRows = kTensorWarps * 16 * kRowTiles,
                       kTileSize = kColumns * kWidth;
  static constexpr int kBytes = 2 * (kRows * kWidth + 4 * kTileSize);
};

// Maximum and sum of a warp's rows so far; sums are of this thread's columns alone.
template <int kRowTiles>
struct RunningSoftmax {
  float top[kRowTiles][2], sum[kRowTiles][2];

  // c -> exp(score - top), correction = what earlier results are to be multiplied by; whether some are. A
  // tile without a visible key leaves both as they are.
  template <int kColumnTiles>
  __device__ bool Add(const Scores& scores, Blocks<kRowTiles, kColumnTiles>& c,
                      float (&correction)[kRowTiles][2]) {
    bool moved = false;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float joined = top[m][half];
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n)
          joined = fmaxf(joined, fmaxf(c[m][n][2 * half], c[m][n][2 * half + 1]));
        joined = fmaxf(joined, __shfl_xor_sync(~0u, joined, 1));
        joined = fmaxf(joined, __shfl_xor_sync(~0u, joined, 2));
        const float base = joined == -INFINITY ? 0.0f : joined,
                    offset = -base * scores.slope;  // no key seen yet
        const float factor = Exp2((top[m][half] - base) * scores.slope);
        float row = 0;
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e)
            row += c[m][n][e] = Exp2(fmaf(c[m][n][e], scores.slope, offset));
        }
        sum[m][half] = fmaf(sum[m][half], factor, row);
        top[m][half] = joined;
        correction[m][half] = factor;
        moved |= factor != 1.0f;
      }
    }
    return __any_sync(~0u, moved);
  }

  __device__ void Finish() {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum[m][half] += __shfl_xor_sync(~0u, sum[m][half], 1);
        sum[m][half] += __shfl_xor_sync(~0u, sum[m][half], 2);
      }
    }
  }
};

// A block per tile of queries of a head: a warp's rows against tiles of keys in order.
template <int kWidth>
__global__ void __launch_bounds__(kTensorThreads)
    TensorForwardKernel(const __grid_constant__ AttentionShape s, const __grid_constant__ AttentionArrays a) {
  using Size = Sizes<kWidth>;
  constexpr int kRowTiles = Size::kRowTiles;
  auto* q = reinterpret_cast<BFloat16*>(tensor_shared);
  BFloat16 *k = q + Size::kRows * kWidth, *v = k + 2 * Size::kTileSize;
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
  if (tiles.begin < tiles.end) fetch(tiles.begin);
  CommitCopies();

  const Scores scores(s);
  KeySpan keys[kRowTiles][2];
  WarpKeys seen;
  RunningSoftmax<kRowTiles> softmax;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      keys[m][half] = KeysOf(s, a, batch, i, first + m * 16 + half * 8 + Lane() / 4);
      seen.Add(keys[m][half]);
      softmax.top[m][half] = a.sinks != nullptr ? a.sinks[head] / scores.nat : -INFINITY;
      softmax.sum[m][half] = a.sinks != nullptr && Lane() % 4 == 0 ? 1.0f : 0.0f;
    }
  }
  seen.Join();
  Blocks<kRowTiles, kWidth / 8> y = {};
  for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
    WaitForCopies<0>();
    __syncthreads();
    if (tile + 1 < tiles.end) fetch(tile + 1);
    CommitCopies();
    const int key = static_cast<int>(tile) * kColumns, at = static_cast<int>(tile % 2) * Size::kTileSize;
    if (seen.Misses(key, kColumns)) continue;
    Blocks<kRowTiles, kColumns / 8> c;
    MultiplyRows<kWidth>(q, first, k + at, 0, c);
    scores.Prepare(c);
    if (!seen.Covers(key, kColumns)) {
      Hide([&](int m, int n, int e) { return keys[m][e / 2].Has(key + n * 8 + Lane() % 4 * 2 + e % 2); }, c);
    }
    float correction[kRowTiles][2];
    if (softmax.Add(scores, c, correction)) {
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int n = 0; n < kWidth / 8; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) y[m][n][e] *= correction[m][e / 2];
        }
      }
    }
    Weights<kRowTiles, kColumns / 16> p;
    PackWeights(c, p);
    AddWeighted<kWidth>(p, v + at, 0, y);
  }
  softmax.Finish();
  BFloat16* out = static_cast<BFloat16*>(a.y) + ((batch * s.queries + i.row) * s.q_heads + head) * dv;
  StoreBlocks(
      y, [&](int m, int half) { return 1.0f / softmax.sum[m][half]; }, out, s.q_heads * dv, i.rows, dv);
  if (a.lse == nullptr || Lane() % 4 != 0) return;
  float* lse = a.lse + (batch * s.q_heads + head) * s.queries + i.row;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + m * 16 + half * 8 + Lane() / 4;
      if (row < i.rows) lse[row] = fmaf(softmax.top[m][half], scores.nat, logf(softmax.sum[m][half]));
    }
  }
}

}  // namespace

bool SuitsTensorCores(const AttentionShape& s, const AttentionArrays& a) {
  return a.dtype == DType::kBFloat16 && s.d > 0 && s.dv > 0 && s.d % 8 == 0 && s.dv % 8 == 0 && s.scale > 0 &&
         s.keys < INT32_MAX - kColumns && IsAligned(a.q) && IsAligned(a.k) && IsAligned(a.v) &&
         IsAligned(a.y);
}

void TensorForward(const AttentionShape& s, const AttentionArrays& a, CUstream_st* stream) {
  WithWidth(s, [&](auto width) {
    using Size = Sizes<decltype(width)::value>;
    LaunchTiles(TensorForwardKernel<decltype(width)::value>, QueryGrid(s, Size::kRows), Size::kBytes, stream,
                s, a);
  });
}

}  // namespace weir::cuda
