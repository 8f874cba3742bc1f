// Tiles of bfloat16 rows in shared memory and their products on tensor cores. A warp owns kRowTiles x 16
// rows. Thread (g = lane / 4, t = lane % 4) holds of a 16 x 8 block c: rows g (c[0], c[1]) and g + 8 (c[2],
// c[3]), columns 2 t, 2 t + 1.
#pragma once
#include <cmath>

#include "kernels/attention/cuda_tile.cuh"
#include "kernels/device/tensor_core.cuh"

namespace weir::cuda {

inline constexpr int kColumns = 64;  // of a tile in shared memory
inline constexpr int kTensorWarps = 4, kTensorThreads = 32 * kTensorWarps;
inline constexpr float kLog2E = 1.4426950408889634f;

template <int kRowTiles, int kColumnTiles>
using Blocks = float[kRowTiles][kColumnTiles][4];
// The left operand of a product: kSteps blocks of 16 columns.
template <int kRowTiles, int kSteps>
using Weights = uint32_t[kRowTiles][kSteps][4];

__device__ inline int Lane() { return static_cast<int>(threadIdx.x) % 32; }
__device__ inline int Warp() { return static_cast<int>(threadIdx.x) / 32; }

// kRows rows of kWidth channels, zero where there is none.
template <int kRows, int kWidth>
__device__ void FetchRows(const HeadRows<BFloat16>& rows, int channels, BFloat16* shared) {
  constexpr int kChunks = kWidth / 8, kStep = kTensorThreads / kChunks;
  const int chunk = static_cast<int>(threadIdx.x) % kChunks, first = static_cast<int>(threadIdx.x) / kChunks;
  const BFloat16* from = rows.data + first * rows.stride + chunk * 8;
  const int live = chunk * 8 < channels ? rows.rows : 0;
#pragma unroll 4
  for (int row = first; row < kRows; row += kStep, from += kStep * rows.stride) {
    CopyAsync(shared + Swizzled<kWidth>(row, chunk), row < live ? from : rows.data, row < live);
  }
}

// c = a[rows,kWidth] b[columns,kWidth]^T, the rows from `row` of a and from `column` of b.
template <int kWidth, int kRowTiles, int kColumnTiles>
__device__ void MultiplyRows(const BFloat16* a, int row, const BFloat16* b, int column,
                             Blocks<kRowTiles, kColumnTiles>& c) {
  const int lane = Lane(), a_row = row + lane % 16, b_row = column + lane / 16 * 8 + lane % 8;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) c[m][n][0] = c[m][n][1] = c[m][n][2] = c[m][n][3] = 0;
  }
#pragma unroll 4
  for (int k = 0; k < kWidth / 16; ++k) {
    uint32_t left[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
      LoadBlocks(a + Swizzled<kWidth>(a_row + m * 16, 2 * k + lane / 16), left[m]);
#pragma unroll
    for (int n = 0; n < kColumnTiles; n += 2) {
      uint32_t right[4];
      LoadBlocks(b + Swizzled<kWidth>(b_row + n * 8, 2 * k + lane / 8 % 2), right);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        MultiplyAdd(left[m], {right[0], right[1]}, c[m][n]);
        MultiplyAdd(left[m], {right[2], right[3]}, c[m][n + 1]);
      }
    }
  }
}

// c += w x[columns,kWidth], the rows from `column` of x.
template <int kWidth, int kRowTiles, int kSteps>
__device__ void AddWeighted(const Weights<kRowTiles, kSteps>& w, const BFloat16* x, int column,
                            Blocks<kRowTiles, kWidth / 8>& c) {
  const int lane = Lane(), x_row = column + lane % 16;
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
#pragma unroll
    for (int n = 0; n < kWidth / 8; n += 2) {
      uint32_t right[4];
      LoadTransposed(x + Swizzled<kWidth>(x_row + k * 16, n + lane / 16), right[0], right[1], right[2],
                     right[3]);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        MultiplyAdd(w[m][k], {right[0], right[1]}, c[m][n]);
        MultiplyAdd(w[m][k], {right[2], right[3]}, c[m][n + 1]);
      }
    }
  }
}

__device__ inline uint32_t PackPair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
// Rounded, as left operand of a product.
template <int kRowTiles, int kColumnTiles>
__device__ void PackWeights(const Blocks<kRowTiles, kColumnTiles>& c,
                            Weights<kRowTiles, kColumnTiles / 2>& w) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      w[m][n / 2][n % 2 * 2] = PackPair(c[m][n][0], c[m][n][1]);
      w[m][n / 2][n % 2 * 2 + 1] = PackPair(c[m][n][2], c[m][n][3]);
    }
  }
}

// The warp's rows c[row] * factor(m, half) to rows `to`, of `rows` the block has.
template <int kRowTiles, int kColumnTiles, class Factor>
__device__ void StoreBlocks(const Blocks<kRowTiles, kColumnTiles>& c, const Factor& factor, BFloat16* to,
                            int64_t stride, int rows, int channels) {
  const int first = Warp() * kRowTiles * 16 + Lane() / 4;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + m * 16 + half * 8;
      if (row >= rows) continue;
      const float f = factor(m, half);
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        const int channel = n * 8 + Lane() % 4 * 2;
        if (channel >= channels) continue;
        *reinterpret_cast<uint32_t*>(to + row * stride + channel) =
            PackPair(c[m][n][2 * half] * f, c[m][n][2 * half + 1] * f);
      }
    }
  }
}

// 2^x; denormals are zero.
__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// A score is Prepare(q . k) * slope in units of log 2, or * nat.
struct Scores {
  float slope, nat, inner;  // inner: 2 log2(e) scale / softcap, or 0 without a softcap
  __device__ explicit Scores(const AttentionShape& s)
      : slope((s.softcap > 0 ? s.softcap : s.scale) * kLog2E),
        nat(s.softcap > 0 ? s.softcap : s.scale),
        inner(s.softcap > 0 ? 2 * kLog2E * s.scale / s.softcap : 0.0f) {}
  // tanh(scale / softcap * q . k) with a softcap.
  template <int kRowTiles, int kColumnTiles>
  __device__ void Prepare(Blocks<kRowTiles, kColumnTiles>& c) const {
    if (inner == 0) return;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) c[m][n][e] = 1.0f - __fdividef(2.0f, 1.0f + Exp2(c[m][n][e] * inner));
      }
    }
  }
};

// The keys [begin, end) that a query sees; none beyond the tile's queries.
struct KeySpan {
  int begin, end;
  __device__ bool Has(int key) const { return key >= begin && key < end; }
};
__device__ inline KeySpan KeysOf(const AttentionShape& s, const AttentionArrays& a, int64_t batch,
                                 const QueryTile& i, int row) {
  if (row >= i.rows) return {INT32_MAX, 0};
  const int64_t position = i.position + row, start = StartOf(s, a, batch, position);
  return {static_cast<int>(s.window > 0 ? max(start, position - s.window + 1) : start),
          static_cast<int>(s.causal ? position + 1 : s.keys)};
}

// What a warp's queries see together: some key lies in `any`, all see the keys of `all`.
struct WarpKeys {
  KeySpan any, all;
  __device__ WarpKeys() : any{INT32_MAX, 0}, all{0, INT32_MAX} {}
  __device__ void Add(const KeySpan& span) {
    any = {min(any.begin, span.begin), max(any.end, span.end)};
    all = {max(all.begin, span.begin), min(all.end, span.end)};
  }
  __device__ void Join() {
    any = {__reduce_min_sync(~0u, any.begin), __reduce_max_sync(~0u, any.end)};
    all = {__reduce_max_sync(~0u, all.begin), __reduce_min_sync(~0u, all.end)};
  }
  __device__ bool Misses(int key, int keys) const { return key >= any.end || key + keys <= any.begin; }
  __device__ bool Covers(int key, int keys) const { return key >= all.begin && key + keys <= all.end; }
};

// Scores of what `visible` (row block, column block, element) denies become -infinity.
template <int kRowTiles, int kColumnTiles, class Visible>
__device__ void Hide(const Visible& visible, Blocks<kRowTiles, kColumnTiles>& c) {
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int e = 0; e < 4; ++e) c[m][n][e] = visible(m, n, e) ? c[m][n][e] : -INFINITY;
    }
  }
}

// Calls body with 64, 128 or 256: channels of a padded head.
template <class Body>
void WithWidth(const AttentionShape& s, const Body& body) {
  const int64_t channels = s.d > s.dv ? s.d : s.dv;
  if (channels <= 64) return body(std::integral_constant<int, 64>{});
  if (channels <= 128) return body(std::integral_constant<int, 128>{});
  body(std::integral_constant<int, 256>{});
}

extern __shared__ __align__(128) unsigned char tensor_shared[];

// With `bytes` of dynamic shared memory; of the device at hand, and a process may have several.
template <class Kernel, class... Arguments>
void LaunchTiles(Kernel* kernel, dim3 grid, int bytes, CUstream_st* stream, const Arguments&... arguments) {
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) != cudaSuccess) {
    return;  // the launch error stays for Device::CheckLaunch
  }
  kernel<<<grid, kTensorThreads, bytes, stream>>>(arguments...);
}

}  // namespace weir::cuda
