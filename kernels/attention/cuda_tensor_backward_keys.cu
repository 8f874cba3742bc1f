#include <type_traits>

#include "kernels/attention/cuda_tensor.h"
#include "kernels/attention/cuda_tensor_gradient.cuh"

namespace weir::cuda {
namespace {

// lse (times log2(e)) and delta of a tile's queries, and the keys that they see.
struct QueryStats {
  float lse[kTile], delta[kTile];
  KeySpan keys[kTile];
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
    i = QueryTileAt(s, run_, tile_++);
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
      const int64_t first = s.first[run], begin = first + tiles.begin * kTile,
                    end = first + min(s.run, tiles.end * kTile);
      tiles.end = TilesOf(StartedBefore(s, a, batch, begin, end, key + keys) - first, kTile);
    }
    return {static_cast<int>(tiles.begin), static_cast<int>(tiles.end)};
  }

  int head_, heads_;
  Range first_, second_;
  int tile_, run_ = 0;
};

// Registers do not hold dk and dv of wide heads: two passes then.
enum class Pass { kBoth, kKeys, kValues };

// A block per tile of keys of a kv head: dk and dv over (head of the group, tile of queries) in order.
template <int kWidth, Pass kPass>
__global__ void __launch_bounds__(kTensorThreads, kWidth <= 128 ? 2 : 1)
    TensorKeyGradientKernel(const __grid_constant__ AttentionShape s,
                            const __grid_constant__ AttentionArrays a,
                            const __grid_constant__ AttentionGradients g) {
  constexpr int kSize = kTile * kWidth;
  constexpr bool kKeys = kPass != Pass::kValues, kValues = kPass != Pass::kKeys;
  __shared__ QueryStats stats[2];
  auto* k = reinterpret_cast<BFloat16*>(tensor_shared);
  BFloat16 *v = k + kSize, *q = v + kSize, *dy = q + 2 * kSize;
  const int64_t j = static_cast<int64_t>(blockIdx.x) * kTile, kv = blockIdx.y, batch = blockIdx.z;
  const int d = static_cast<int>(s.d), dv = static_cast<int>(s.dv), thread = static_cast<int>(threadIdx.x);
  const auto fetch = [&](int64_t head, const QueryTile& i, int buffer) {
    FetchRows<kWidth>(RowsOf<BFloat16>(s, a.q, batch, i, head, d), d, q + buffer * kSize);
    FetchRows<kWidth>(RowsOf<BFloat16>(s, g.dy, batch, i, head, dv), dv, dy + buffer * kSize);
    QueryStat stat;
    if (thread >= i.rows) return stat;
    const int64_t at = (batch * s.q_heads + head) * s.queries + i.row + thread;
    stat.lse = a.lse[at];
    stat.delta = g.delta[at];
    stat.keys = KeysOf(s, a, batch, i, thread);
    return stat;
  };
  const auto keep = [&](const QueryStat& stat, int buffer) {
    if (thread >= kTile) return;
    stats[buffer].lse[thread] = stat.lse * kLog2E;
    stats[buffer].delta[thread] = stat.delta;
    stats[buffer].keys[thread] = stat.keys;
  };

  FetchRows<kWidth>(KeyRowsOf<BFloat16>(s, a.k, batch, j, kv, d), d, k);
  FetchRows<kWidth>(KeyRowsOf<BFloat16>(s, a.v, batch, j, kv, dv), dv, v);
  QueryWalk walk(s, a, batch, kv, j, kTile);
  int64_t head = 0;
  QueryTile i{};
  bool more = walk.Next(s, head, i);
  if (more) keep(fetch(head, i, 0), 0);
  CommitCopies();

  const Scores scores(s);
  const int key = static_cast<int>(j);
  Blocks<kWidth / 8> dk = {}, dvalue = {};  // the one of another pass is not there
  for (int buffer = 0; more; buffer ^= 1) {
    WaitForRows();
    more = walk.Next(s, head, i);
    QueryStat next;
    if (more) next = fetch(head, i, buffer ^ 1);
    CommitCopies();
    const QueryStats& of = stats[buffer];
    const BFloat16 *queries = q + buffer * kSize, *gradients = dy + buffer * kSize;
    const auto lse = [&](int n, int e) { return of.lse[ColumnOf(n, e)]; };
    TileBlocks c, dp;
    MultiplyRows<kWidth>(k, queries, c);
    if constexpr (kKeys) MultiplyRows<kWidth>(v, gradients, dp);
    AwaitProducts<kKeys ? 1 : 0>(c);
    scores.Prepare(c);
    if (!CommonKeys(of.keys[Lane()], of.keys[32 + Lane()]).Cover(key)) {
      Hide([&](int n, int e) { return of.keys[ColumnOf(n, e)].Has(key + RowOf(e / 2)); }, c);
    }
    Exponentiate(scores, lse, c);
    Weights p, ds;
    if constexpr (kValues) {
      PackWeights(c, p);
      AddWeighted<kWidth>(p, gradients, dvalue);
    }
    if constexpr (kKeys) {
      AwaitProducts<kValues ? 1 : 0>(dp);  // they end in the order in which they began
      Differentiate(
          scores, lse, [&](int n, int e) { return of.delta[ColumnOf(n, e)]; }, c, dp);
      PackWeights(dp, ds);
      AddWeighted<kWidth>(ds, queries, dk);
    }
    if constexpr (kPass == Pass::kBoth) {
      AwaitProducts<0>(dk, dvalue);
    } else if constexpr (kKeys) {
      AwaitProducts<0>(dk);
    } else {
      AwaitProducts<0>(dvalue);
    }
    if (more) keep(next, buffer ^ 1);
  }
  const int64_t row = (batch * s.keys + j) * s.kv_heads + kv;
  const int rows = RowsOfTile(j, s.keys);
  if constexpr (kKeys) {
    StoreBlocks<kWidth / 8>(dk, {s.scale, s.scale}, static_cast<BFloat16*>(g.dk) + row * d, s.kv_heads * d,
                            rows, d);
  }
  if constexpr (kValues) {
    StoreBlocks<kWidth / 8>(dvalue, {1, 1}, static_cast<BFloat16*>(g.dv) + row * dv, s.kv_heads * dv, rows,
                            dv);
  }
}

template <int kWidth, Pass kPass>
void Launch(const AttentionShape& s, const AttentionArrays& a, const AttentionGradients& g,
            CUstream_st* stream) {
  constexpr int kTiles = 2 + 2 * 2;  // k, v; q and dy twice
  LaunchTiles(TensorKeyGradientKernel<kWidth, kPass>, KeyGrid(s), kTiles * kTile * kWidth * 2, stream, s, a,
              g);
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
