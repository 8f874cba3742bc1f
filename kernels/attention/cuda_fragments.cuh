// Tiles of 64 bfloat16 rows in shared memory and their products by a warpgroup, the whole block. Of a 64 x 8
// block c a thread (g = lane / 4, t = lane % 4) of warp w holds rows 16 w + g (c[0], c[1]) and 16 w + g + 8
// (c[2], c[3]), columns 2 t and 2 t + 1.
#pragma once
#include <cmath>

#include "kernels/attention/cuda_tile.cuh"
#include "kernels/device/warpgroup_weighted.cuh"

namespace weir::cuda {

inline constexpr int kTensorThreads = 128;
inline constexpr float kLog2E = 1.4426950408889634f;
static_assert(kTile == 64);

template <int kColumnTiles>
using Blocks = float[kColumnTiles][4];
using TileBlocks = Blocks<kTile / 8>;
// A tile as left operand of products: blocks of 16 columns.
using Weights = uint32_t[kTile / 16][4];

__device__ inline int Lane() { return static_cast<int>(threadIdx.x) % 32; }
// Of this thread's rows and columns in a tile.
__device__ inline int RowOf(int half) {
  return static_cast<int>(threadIdx.x) / 32 * 16 + half * 8 + Lane() / 4;
}
__device__ inline int ColumnOf(int n, int e) { return n * 8 + Lane() % 4 * 2 + e % 2; }

// Rows of kWidth channels, zero where there is none; 64 channels of all rows lie behind each other.
template <int kWidth>
__device__ void FetchRows(const HeadRows<BFloat16>& rows, int channels, BFloat16* shared) {
  constexpr int kChunks = kWidth / 8, kStep = kTensorThreads / kChunks;
  const int chunk = static_cast<int>(threadIdx.x) % kChunks, first = static_cast<int>(threadIdx.x) / kChunks;
  const BFloat16* from = rows.data + first * rows.stride + chunk * 8;
  const int live = chunk * 8 < channels ? rows.rows : 0;
  shared += chunk / 8 * kTile * 64;
#pragma unroll 4
  for (int row = first; row < kTile; row += kStep, from += kStep * rows.stride) {
    CopyAsync(shared + Swizzled<64>(row, chunk % 8), row < live ? from : rows.data, row < live);
  }
}
// kTiles tiles behind each other.
template <int kWidth, int kTiles>
__device__ void FetchTiles(const HeadRows<BFloat16>& rows, int channels, BFloat16* shared) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const int first = t * kTile < rows.rows ? t * kTile : 0;  // a row that is there
    FetchRows<kWidth>({rows.data + first * rows.stride, rows.stride, rows.rows - t * kTile}, channels,
                      shared + t * kTile * kWidth);
  }
}
// What every thread has fetched so far is there, for products too.
__device__ inline void WaitForRows() {
  WaitForCopies<0>();
  FenceAsync();
  __syncthreads();
}

// Uses of c stay where they are.
template <int kColumnTiles>
__device__ void Pin(Blocks<kColumnTiles>& c) {
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(c[n][e])::"memory");
  }
}
template <int kTiles, int kColumnTiles>
__device__ void Pin(Blocks<kColumnTiles> (&c)[kTiles]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) Pin(c[t]);
}
// Returns when all but the newest kPending products are done, with them `sums`.
template <int kPending, class... Sums>
__device__ void AwaitProducts(Sums&... sums) {
  WaitForProducts<kPending>();
  (Pin(sums), ...);
}

// Starts c = a b^T of tiles of kWidth channels.
template <int kWidth>
__device__ void MultiplyRows(const BFloat16* a, const BFloat16* b, TileBlocks& c) {
  FenceProducts();
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
    const int at = k / 4 * kTile * 64 + k % 4 * 16;
    if (k == 0) {
      MultiplyColumns(ColumnsDescriptor(a), ColumnsDescriptor(b), c);
    } else {
      AddColumns(ColumnsDescriptor(a + at), ColumnsDescriptor(b + at), c);
    }
  }
  CommitProducts();
}

// Starts c += w x of a tile x of kWidth channels.
template <int kWidth>
__device__ void AddWeighted(const Weights& w, const BFloat16* x, Blocks<kWidth / 8>& c) {
  Pin(c);
  FenceProducts();
#pragma unroll
  for (int k = 0; k < kTile / 16; ++k)
    MultiplyWeighted(w[k], RowsDescriptor(x + k * 16 * 64, kTile * 64 * 2), c);
  CommitProducts();
}

__device__ inline uint32_t PackPair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
// Rounded, as left operand of a product.
__device__ inline void PackWeights(const TileBlocks& c, Weights& w) {
#pragma unroll
  for (int n = 0; n < kTile / 8; ++n) {
    w[n / 2][n % 2 * 2] = PackPair(c[n][0], c[n][1]);
    w[n / 2][n % 2 * 2 + 1] = PackPair(c[n][2], c[n][3]);
  }
}

// c * factor[half] to the rows from `to` that there are.
template <int kColumnTiles>
__device__ void StoreBlocks(const Blocks<kColumnTiles>& c, const float (&factor)[2], BFloat16* to,
                            int64_t stride, int rows, int channels) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = RowOf(half);
    if (row >= rows) continue;
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      const int channel = ColumnOf(n, 0);
      if (channel >= channels) continue;
      *reinterpret_cast<uint32_t*>(to + row * stride + channel) =
          PackPair(c[n][2 * half] * factor[half], c[n][2 * half + 1] * factor[half]);
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
  __device__ void Prepare(TileBlocks& c) const {
    if (inner == 0) return;
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) c[n][e] = 1.0f - __fdividef(2.0f, 1.0f + Exp2(c[n][e] * inner));
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

// The keys that all queries of a tile see: two of the queries at every lane.
class CommonKeys {
 public:
  __device__ CommonKeys() : keys_{0, 0} {}
  __device__ CommonKeys(const KeySpan& a, const KeySpan& b)
      : keys_{__reduce_max_sync(~0u, max(a.begin, b.begin)), __reduce_min_sync(~0u, min(a.end, b.end))} {}
  // The tile of keys from `key`.
  __device__ bool Cover(int key) const { return key >= keys_.begin && key + kTile <= keys_.end; }

 private:
  KeySpan keys_;
};

// Scores of what `visible` (column block, element) denies become -infinity.
template <class Visible>
__device__ void Hide(const Visible& visible, TileBlocks& c) {
#pragma unroll
  for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) c[n][e] = visible(n, e) ? c[n][e] : -INFINITY;
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

extern __shared__ __align__(1024) unsigned char tensor_shared[];

// With `bytes` of dynamic shared memory; of the device at hand, and a process may have several.
template <class Kernel, class... Arguments>
void LaunchTiles(Kernel* kernel, dim3 grid, int bytes, CUstream_st* stream, const Arguments&... arguments) {
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) != cudaSuccess) {
    return;  // the launch error stays for Device::CheckLaunch
  }
  kernel<<<grid, kTensorThreads, bytes, stream>>>(arguments...);
}

}  // namespace weir::cuda
