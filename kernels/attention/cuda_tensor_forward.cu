#include <type_traits>

#include "kernels/attention/cuda_fragments.cuh"
#include "kernels/attention/cuda_tensor.h"

namespace weir::cuda {
namespace {

// Maximum and sum of this thread's two rows so far; sums are of its columns alone.
struct RunningSoftmax {
  float top[2], sum[2];

  // c -> exp(score - top), correction = what earlier results are to be multiplied by; whether some of the
  // warp's are. A tile without a visible key leaves all as it is.
  __device__ bool Add(const Scores& scores, TileBlocks& c, float (&correction)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float joined = top[half];
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n) joined = fmaxf(joined, fmaxf(c[n][2 * half], c[n][2 * half + 1]));
      joined = fmaxf(joined, __shfl_xor_sync(~0u, joined, 1));
      joined = fmaxf(joined, __shfl_xor_sync(~0u, joined, 2));
      const float base = joined == -INFINITY ? 0.0f : joined,
                  offset = -base * scores.slope;  // no key seen yet
      correction[half] = Exp2((top[half] - base) * scores.slope);
      float row = 0;
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e)
          row += c[n][e] = Exp2(fmaf(c[n][e], scores.slope, offset));
      }
      sum[half] = fmaf(sum[half], correction[half], row);
      top[half] = joined;
    }
    return __any_sync(~0u, correction[0] != 1.0f || correction[1] != 1.0f);
  }

  __device__ void Finish() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(~0u, sum[half], 1);
      sum[half] += __shfl_xor_sync(~0u, sum[half], 2);
    }
  }
};

// A block per kRowTiles tiles of queries of a head, against tiles of keys in order: one tile's scores are
// multiplied while the other's are exponentiated, and keys are fetched half as often.
template <int kWidth, int kRowTiles>
__global__ void __launch_bounds__(kTensorThreads, 2)
    TensorForwardKernel(const __grid_constant__ AttentionShape s, const __grid_constant__ AttentionArrays a) {
  constexpr int kSize = kTile * kWidth, kRows = kRowTiles * kTile;
  auto* q = reinterpret_cast<BFloat16*>(tensor_shared);
  BFloat16 *k = q + kRowTiles * kSize, *v = k + 2 * kSize;
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
  if (tiles.begin < tiles.end) fetch(tiles.begin);
  CommitCopies();

  const Scores scores(s);
  RunningSoftmax softmax[kRowTiles];
  KeySpan keys[kRowTiles][2];
  CommonKeys common[kRowTiles];
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
    const int first = t * kTile;
    common[t] = {KeysOf(s, a, batch, i, first + Lane()), KeysOf(s, a, batch, i, first + 32 + Lane())};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      keys[t][half] = KeysOf(s, a, batch, i, first + RowOf(half));
      softmax[t].top[half] = a.sinks != nullptr ? a.sinks[head] / scores.nat : -INFINITY;
      softmax[t].sum[half] = a.sinks != nullptr && Lane() % 4 == 0 ? 1.0f : 0.0f;
    }
  }
  Blocks<kWidth / 8> y[kRowTiles] = {};
  for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
    WaitForRows();
    if (tile + 1 < tiles.end) fetch(tile + 1);
    CommitCopies();
    const int key = static_cast<int>(tile) * kTile, at = static_cast<int>(tile % 2) * kSize;
    TileBlocks c[kRowTiles];
    Weights p[kRowTiles];
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) MultiplyRows<kWidth>(q + t * kSize, k + at, c[t]);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      AwaitProducts<kRowTiles - 1>(c[t]);  // products end in the order in which they began
      scores.Prepare(c[t]);
      if (!common[t].Cover(key))
        Hide([&](int n, int e) { return keys[t][e / 2].Has(key + ColumnOf(n, e)); }, c[t]);
      float correction[2];
      if (softmax[t].Add(scores, c[t], correction)) {
#pragma unroll
        for (int n = 0; n < kWidth / 8; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) y[t][n][e] *= correction[e / 2];
        }
      }
      PackWeights(c[t], p[t]);
      AddWeighted<kWidth>(p[t], v + at, y[t]);
    }
    AwaitProducts<0>(y);
  }
  BFloat16* out = static_cast<BFloat16*>(a.y) + ((batch * s.queries + i.row) * s.q_heads + head) * dv;
  float* lse = a.lse == nullptr ? nullptr : a.lse + (batch * s.q_heads + head) * s.queries + i.row;
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
    softmax[t].Finish();
    StoreBlocks<kWidth / 8>(y[t], {1.0f / softmax[t].sum[0], 1.0f / softmax[t].sum[1]},
                            out + t * kTile * s.q_heads * dv, s.q_heads * dv, i.rows - t * kTile, dv);
    if (lse == nullptr || Lane() % 4 != 0) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = t * kTile + RowOf(half);
      if (row < i.rows) lse[row] = fmaf(softmax[t].top[half], scores.nat, logf(softmax[t].sum[half]));
    }
  }
}

}  // namespace

bool SuitsTensorCores(const AttentionShape& s, const AttentionArrays& a) {
  return a.dtype == DType::kBFloat16 && s.d > 0 && s.dv > 0 && s.d % 8 == 0 && s.dv % 8 == 0 && s.scale > 0 &&
         s.keys < INT32_MAX - kTile && IsAligned(a.q) && IsAligned(a.k) && IsAligned(a.v) && IsAligned(a.y);
}

void TensorForward(const AttentionShape& s, const AttentionArrays& a, CUstream_st* stream) {
  WithWidth(s, [&](auto width) {
    constexpr int kWidth = decltype(width)::value, kRowTiles = kWidth <= 128 ? 2 : 1;
    constexpr int kTiles = kRowTiles + 2 * 2;  // q; k and v twice
    LaunchTiles(TensorForwardKernel<kWidth, kRowTiles>, QueryGrid(s, kRowTiles * kTile),
                kTiles * kTile * kWidth * 2, stream, s, a);
  });
}

}  // namespace weir::cuda
