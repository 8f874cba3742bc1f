#include <cmath>
#include <cstring>

#include "backend/cpu/parallel.h"
#include "backend/kernel.h"
#include "kernels/attention/score_loops.h"
#include "kernels/attention/tile.h"
#include "kernels/common/vector_loops.h"
#include "kernels/gemm/sgemm.h"

namespace weir {
namespace {

struct Backward {
  AttentionConfig config;
  const float *q, *k, *v, *y, *lse, *dy, *sinks;
  float *delta, *dq, *dk, *dv;
};

enum class Target { kAll, kQueries, kKeys };

// delta[b,h,i] = dy . y
void ComputeDelta(const Backward& g) {
  const AttentionConfig& c = g.config;
  ParallelFor(c.batch * c.q_heads * c.queries, 64, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t i = at % c.queries, head = at / c.queries;
      const int64_t row = c.Y(head / c.q_heads, i, head % c.q_heads);
      g.delta[at] = Dot(g.dy + row, g.y + row, c.dv);
    }
  });
}

// Adds one tile's share of the wanted gradients.
void BackwardTile(const Backward& g, int64_t b, int64_t h, const AttentionTile& tile,
                  Target target) {
  const AttentionConfig& c = g.config;
  const int64_t rows = tile.i.size(), columns = tile.j.size(), kv = h / c.group();
  const int64_t q_stride = c.q_heads * c.d, k_stride = c.kv_heads * c.d;
  const int64_t y_stride = c.q_heads * c.dv, v_stride = c.kv_heads * c.dv;
  const int64_t q = c.Q(b, tile.i.begin, h), k = c.K(b, tile.j.begin, kv);
  const int64_t y = c.Y(b, tile.i.begin, h), v = c.V(b, tile.j.begin, kv);
  alignas(64) float p[kQueryTile * kKeyTile], ds[kQueryTile * kKeyTile];
  TileScores(c, g.q, g.k, b, h, tile, p);
  Sgemm(rows, columns, c.dv, g.dy + y, y_stride, g.v + v, v_stride, ds, kKeyTile,
        {.transpose_b = true});
  for (int64_t row = 0; row < rows; ++row) {
    const Span visible = tile.Visible(c, b, row);
    const int64_t first = std::min(visible.begin, columns), last = std::max(visible.end, first);
    const int64_t at = c.Lse(b, h, tile.i.begin + row);
    float* ds_row = ds + row * kKeyTile;
    ScoreGradient({.lse = g.lse[at], .delta = g.delta[at], .scale = c.scale, .softcap = c.softcap},
                  last - first, p + row * kKeyTile + first, ds_row + first);
    std::fill(ds_row, ds_row + first, 0.0f);
    std::fill(ds_row + last, ds_row + columns, 0.0f);
  }
  if (target != Target::kQueries) {
    Sgemm(columns, c.dv, rows, p, kKeyTile, g.dy + y, y_stride, g.dv + v, v_stride,
          {.transpose_a = true, .accumulate = true});
    Sgemm(columns, c.d, rows, ds, kKeyTile, g.q + q, q_stride, g.dk + k, k_stride,
          {.transpose_a = true, .accumulate = true});
  }
  if (target != Target::kKeys) {
    Sgemm(rows, c.d, columns, ds, kKeyTile, g.k + k, k_stride, g.dq + q, q_stride,
          {.accumulate = true});
  }
}

// One kv head: dk and dv sum over (head of the group, query tile), dq over key tiles, both in
// order.
void BackwardKeys(const Backward& g, int64_t b, int64_t kv, int64_t key_tile, Target target) {
  const AttentionConfig& c = g.config;
  const Span j = KeyTile(c, key_tile);
  for (int64_t h = kv * c.group(); h < (kv + 1) * c.group(); ++h) {
    for (int64_t run = 0; run < c.rows.runs(); ++run) {
      const Span tiles = QueryTiles(c, b, j, run);
      for (int64_t t = tiles.begin; t < tiles.end; ++t) BackwardTile(g, b, h, {QueryTile(c, t), j}, target);
    }
  }
}

// With a kv head per thread one sweep makes everything. With fewer heads than threads a second
// sweep makes dq: the tiles are computed twice, spread over all threads; every sum keeps its order
// and bits.
void BackwardTiles(const Backward& g) {
  const AttentionConfig& c = g.config;
  const int64_t heads = c.batch * c.kv_heads, key_tiles = DivCeil(c.keys, kKeyTile);
  if (heads >= CpuThreads() || key_tiles == 1) {
    return ParallelFor(heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t head = begin; head < end; ++head) {
        for (int64_t t = 0; t < key_tiles; ++t) {
          BackwardKeys(g, head / c.kv_heads, head % c.kv_heads, t, Target::kAll);
        }
      }
    });
  }
  ParallelFor(heads * key_tiles, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t head = task / key_tiles;
      BackwardKeys(g, head / c.kv_heads, head % c.kv_heads, Folded(task % key_tiles, key_tiles),
                   Target::kKeys);
    }
  });
  const int64_t query_tiles = QueryTileCount(c);
  ParallelFor(c.batch * c.q_heads * query_tiles, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t head = task / query_tiles;
      const Span i = QueryTile(c, Folded(task % query_tiles, query_tiles)), tiles = KeyTiles(c, head / c.q_heads, i);
      for (int64_t t = tiles.begin; t < tiles.end; ++t) {
        BackwardTile(g, head / c.q_heads, head % c.q_heads, {i, KeyTile(c, t)}, Target::kQueries);
      }
    }
  });
}

// dsinks[h] (+)= -sum_{b,i} exp(sink - lse) * delta, in double in order of (b, i).
void SinkGradient(const Backward& g, bool accumulate, float* dsinks) {
  const AttentionConfig& c = g.config;
  ParallelFor(c.q_heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t h = begin; h < end; ++h) {
      double sum = 0;
      for (int64_t b = 0; b < c.batch; ++b) {
        for (int64_t i = 0; i < c.queries; ++i) {
          const int64_t at = c.Lse(b, h, i);
          sum -= static_cast<double>(std::exp(g.sinks[h] - g.lse[at])) *
                 static_cast<double>(g.delta[at]);
        }
      }
      dsinks[h] = (accumulate ? dsinks[h] : 0.0f) + static_cast<float>(sum);
    }
  });
}

void Clear(const Tensor& tensor) {
  if (tensor.size_bytes() > 0)
    std::memset(tensor.bytes, 0, static_cast<size_t>(tensor.size_bytes()));
}

void LaunchAttentionGradient(KernelContext& c) {
  const Backward g{.config = ConfigOf(c, 8),
                   .q = c.inputs[0].data<float>(),
                   .k = c.inputs[1].data<float>(),
                   .v = c.inputs[2].data<float>(),
                   .y = c.inputs[3].data<float>(),
                   .lse = c.inputs[4].data<float>(),
                   .dy = c.inputs[5].data<float>(),
                   .sinks = c.has(6) ? c.inputs[6].data<float>() : nullptr,
                   .delta = reinterpret_cast<float*>(c.workspace.data()),
                   .dq = c.outputs[0].data<float>(),
                   .dk = c.outputs[1].data<float>(),
                   .dv = c.outputs[2].data<float>()};
  for (size_t o = 0; o < 3; ++o) Clear(c.outputs[o]);
  ComputeDelta(g);
  BackwardTiles(g);
  if (c.outputs.size() > 3 && c.outputs[3]) SinkGradient(g, c.has(7), c.outputs[3].data<float>());
}

}  // namespace

const Kernel& AttentionGradientCpuKernel() {
  static const Kernel kernel{
      .launch = LaunchAttentionGradient, .workspace_bytes = [](const Node& node) {
        return BytesOf(DType::kFloat32, NumElements(ToDims(node.in(4)->shape)));
      }};
  return kernel;
}

}  // namespace weir
