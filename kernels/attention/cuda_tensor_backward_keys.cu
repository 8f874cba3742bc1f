#include <type_traits>

#include "kernels/attention/cuda_tensor.h"
#include "kernels/attention/cuda_tensor_gradient.cuh"

namespace weir::cuda {
namespace {

// Registers do not hold dk and dv of wide heads: two passes then.
enum class Pass { kBoth, kKeys, kValues };

template <int kWidth, Pass kPass>
struct Sizes {
  static constexpr int kRowTiles = kWidth == 64 ? 2 : 1, kRows = kTensorWarps * 16 * kRowTiles,
                       kTileSize = kColumns * kWidth;
  static constexpr int kAtOnce = kWidth == 128 ? 64 : 32;  // columns of a product, as registers allow
  static constexpr bool kKeys = kPass != Pass::kValues, kValues = kPass != Pass::kKeys;
  static constexpr int kKeyWidth = kKeys ? kWidth : 16, kValueWidth = kValues ? kWidth : 16;
};

// lse and delta of a tile's queries, and the keys that they see.
struct QueryStats {
  float lse[kColumns], delta[kColumns];
  KeySpan keys[kColumns];
};
struct QueryStat {
  float lse = 0, delta = 0;
  KeySpan keys = {INT32_MAX, 0};
};

// The first position of [begin, end) whose document starts at or behind `key`: starts do not fall. All
// threads of the block look at once.
__device__ int64_t StartedBefore(const AttentionShape& s, const AttentionArrays& a, int64_t batch,
                                 int64_t begin, int64_t end, int64_t key) {
  while (begin < end) {
    const int64_t step = (end - begin + kTensorThreads - 1) / kTensorThreads, at = begin + threadIdx.x * step;
    const int before = __syncthreads_count(at < end && StartOf(s, a, batch, at) < key);
    if (before == 0) return begin;
    end = min(end, begin + before * step);
    begin += (before - 1) * step + 1;
  }
  return begin;
}

// Tiles of queries that see keys of a tile: over heads of the group, runs, and queries, in order.
class QueryWalk {
 public:
  __device__ QueryWalk(const AttentionShape& s, const AttentionArrays& a, int64_t batch, int64_t kv,
                       int64_t key, int keys)
      : head_(static_cast<int>(kv * (s.q_heads / s.kv_heads))),
        heads_(static_cast<int>(s.q_heads / s.kv_heads)),
        first_(Find(s, a, batch, 0, key, keys)),
        second_(s.runs > 1 ? Find(s, a, batch, 1, key, keys) : Range{0, 0}),
        tile_(first_.begin) {}

  // False when there is none left.
  __device__ bool Next(const AttentionShape& s, int64_t& head, QueryTile& i) {
    while (tile_ == (run_ == 0 ? first_.end : second_.end)) {
      if (run_ == 1 && --heads_ == 0) return false;
      head_ += run_;
      run_ ^= 1;
      tile_ = run_ == 0 ? first_.begin : second_.begin;
    }
    head = head_;
    i = QueryTileAt<kColumns>(s, run_, tile_++);
    return true;
  }

 private:
  struct Range {
    int begin, end;
  };
  __device__ static Range Find(const AttentionShape& s, const AttentionArrays& a, int64_t batch, int64_t run,
                               int64_t key, int keys) {
    TileSpan tiles = QueryTilesOf(s, run, key, keys);
    if (a.starts != nullptr && tiles.begin < tiles.end) {
      const int64_t first = s.first[run], begin = first + tiles.begin * kColumns,
                    end = first + min(s.run, tiles.end * kColumns);
      tiles.end = TilesOf(StartedBefore(s, a, batch, begin, end, key + keys) - first, kColumns);
    }
    return {static_cast<int>(tiles.begin), static_cast<int>(tiles.end)};
  }

  int head_, heads_;
  Range first_, second_;
  int tile_, run_ = 0;
};

// A block per tile of keys of a kv head: dk and dv of a warp's rows over (head of the group, tile of queries)
// in order.
template <int kWidth, Pass kPass>
__global__ void __launch_bounds__(kTensorThreads)
    TensorKeyGradientKernel(const __grid_constant__ AttentionShape s,
                            const __grid_constant__ AttentionArrays a,
                            const __grid_constant__ AttentionGradients g) {
  using Size = Sizes<kWidth, kPass>;
  constexpr int kRowTiles = Size::kRowTiles, kAtOnce = Size::kAtOnce;
  __shared__ QueryStats stats[2];
  auto* k = reinterpret_cast<BFloat16*>(tensor_shared);
  BFloat16 *v = k + Size::kRows * kWidth, *q = v + Size::kRows * kWidth, *dy = q + 2 * Size::kTileSize;
  const int64_t j = static_cast<int64_t>(blockIdx.x) * Size::kRows, kv = blockIdx.y, batch = blockIdx.z;
  const int d = static_cast<int>(s.d), dv = static_cast<int>(s.dv), first = Warp() * kRowTiles * 16;
  const int thread = static_cast<int>(threadIdx.x), rows = RowsOfTile(j, s.keys, Size::kRows);
  const auto fetch = [&](int64_t head, const QueryTile& i, int buffer) {
    FetchRows<kColumns, kWidth>(RowsOf<BFloat16>(s, a.q, batch, i, head, d), d, q + buffer * Size::kTileSize);
    FetchRows<kColumns, kWidth>(RowsOf<BFloat16>(s, g.dy, batch, i, head, dv), dv,
                                dy + buffer * Size::kTileSize);
    QueryStat stat;
    if (thread >= i.rows) return stat;
    const int64_t at = (batch * s.q_heads + head) * s.queries + i.row + thread;
    stat.lse = a.lse[at];
    stat.delta = g.delta[at];
    stat.keys = KeysOf(s, a, batch, i, thread);
    return stat;
  };
  const auto keep = [&](const QueryStat& stat, int buffer) {
    if (thread >= kColumns) return;
    stats[buffer].lse[thread] = stat.lse * kLog2E;
    stats[buffer].delta[thread] = stat.delta;
    stats[buffer].keys[thread] = stat.keys;
  };

  FetchRows<Size::kRows, kWidth>(KeyRowsOf<BFloat16>(s, a.k, batch, j, kv, d, Size::kRows), d, k);
  FetchRows<Size::kRows, kWidth>(KeyRowsOf<BFloat16>(s, a.v, batch, j, kv, dv, Size::kRows), dv, v);
  QueryWalk walk(s, a, batch, kv, j, Size::kRows);
  int64_t head = 0;
  QueryTile i{};
  bool more = walk.Next(s, head, i);
  if (more) keep(fetch(head, i, 0), 0);
  CommitCopies();

  const Scores scores(s);
  const int own = static_cast<int>(j) + first;  // the warp's first key
  Blocks<kRowTiles, Size::kKeyWidth / 8> dk = {};
  Blocks<kRowTiles, Size::kValueWidth / 8> dvalue = {};
  for (int buffer = 0; more; buffer ^= 1) {
    WaitForCopies<0>();
    __syncthreads();
    more = walk.Next(s, head, i);
    QueryStat next;
    if (more) next = fetch(head, i, buffer ^ 1);
    CommitCopies();
    const QueryStats& of = stats[buffer];
    const BFloat16 *queries = q + buffer * Size::kTileSize, *gradients = dy + buffer * Size::kTileSize;
#pragma unroll 1
    for (int column = 0; column < kColumns; column += kAtOnce) {
      WarpKeys seen;
#pragma unroll
      for (int n = 0; n < kAtOnce; n += 32) seen.Add(of.keys[column + n + Lane()]);
      seen.Join();
      if (seen.Misses(own, kRowTiles * 16)) continue;
      Blocks<kRowTiles, kAtOnce / 8> c, dp;
      MultiplyRows<kWidth>(k, first, queries, column, c);
      if constexpr (Size::kKeys) MultiplyRows<kWidth>(v, first, gradients, column, dp);
      scores.Prepare(c);
      const int query = column + Lane() % 4 * 2;
      if (!seen.Covers(own, kRowTiles * 16)) {
        const int key = own + Lane() / 4;
        Hide(
            [&](int m, int n, int e) { return of.keys[query + n * 8 + e % 2].Has(key + m * 16 + e / 2 * 8); },
            c);
      }
      DifferentiateScores(
          scores, [&](int, int n, int e) { return of.lse[query + n * 8 + e % 2]; },
          [&](int, int n, int e) { return of.delta[query + n * 8 + e % 2]; }, c, dp);
      Weights<kRowTiles, kAtOnce / 16> weights;
      if constexpr (Size::kValues) {
        PackWeights(c, weights);
        AddWeighted<kWidth>(weights, gradients, column, dvalue);
      }
      if constexpr (Size::kKeys) {
        PackWeights(dp, weights);
        AddWeighted<kWidth>(weights, queries, column, dk);
      }
    }
    if (more) keep(next, buffer ^ 1);
  }
  const int64_t row = (batch * s.keys + j) * s.kv_heads + kv;
  if constexpr (Size::kKeys) {
    StoreBlocks(
        dk, [&](int, int) { return s.scale; }, static_cast<BFloat16*>(g.dk) + row * d, s.kv_heads * d, rows,
        d);
  }
  if constexpr (Size::kValues) {
    StoreBlocks(
        dvalue, [](int, int) { return 1.0f; }, static_cast<BFloat16*>(g.dv) + row * dv, s.kv_heads * dv, rows,
        dv);
  }
}

template <int kWidth, Pass kPass>
void Launch(const AttentionShape& s, const AttentionArrays& a, const AttentionGradients& g,
            CUstream_st* stream) {
  using Size = Sizes<kWidth, kPass>;
  constexpr int kBytes = 2 * (2 * Size::kRows * kWidth + 4 * Size::kTileSize);
  LaunchTiles(TensorKeyGradientKernel<kWidth, kPass>, KeyGrid(s, Size::kRows), kBytes, stream, s, a, g);
}

}  // namespace

void TensorKeyGradient(const AttentionShape& s, const AttentionArrays& a, const AttentionGradients& g,
                       CUstream_st* stream) {
  WithWidth(s, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    if constexpr (kWidth <= 128) {
      Launch<kWidth, Pass::kBoth>(s, a, g, stream);
    } else {
      Launch<kWidth, Pass::kKeys>(s, a, g, stream);
      Launch<kWidth, Pass::kValues>(s, a, g, stream);
    }
  });
}

}  // namespace weir::cuda
