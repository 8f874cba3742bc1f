#include <cmath>
#include <limits>

#include "backend/cpu/parallel.h"
#include "backend/kernel.h"
#include "graph/error.h"
#include "kernels/attention/score_loops.h"
#include "kernels/attention/tile.h"
#include "kernels/common/vector_loops.h"
#include "kernels/gemm/sgemm.h"

namespace weir {

void TileScores(const AttentionConfig& c, const float* q, const float* k, int64_t b, int64_t h,
                const AttentionTile& tile, float* scores) {
  Sgemm(tile.i.size(), tile.j.size(), c.d, q + c.Q(b, tile.i.begin, h), c.q_heads * c.d,
        k + c.K(b, tile.j.begin, h / c.group()), c.kv_heads * c.d, scores, kKeyTile,
        {.transpose_b = true});
  for (int64_t row = 0; row < tile.i.size(); ++row) {
    float* s = scores + row * kKeyTile;
    const Span visible = tile.Visible(c, b, row);
    const int64_t first = std::min(visible.begin, tile.j.size());
    const int64_t last = std::max(visible.end, first);
    if (c.softcap > 0) {
      CapScores(s + first, last - first, c.scale, c.softcap);
    } else {
      CopyScaled(s + first, last - first, c.scale, s + first);
    }
    std::fill(s, s + first, 0.0f);
    std::fill(s + last, s + tile.j.size(), 0.0f);
  }
}

AttentionConfig ConfigOf(const KernelContext& c, size_t starts) {
  AttentionConfig config(c.attributes(), c.inputs[0].dims, c.inputs[1].dims, c.inputs[2].dims);
  if (!c.has(starts)) return config;
  config.starts = c.inputs[starts].data<int64_t>();
  for (int64_t at = 0; at < config.batch * config.keys; ++at) {
    const int64_t i = at % config.keys, start = config.starts[at];
    const int64_t least = i == 0 ? 0 : config.starts[at - 1];
    WEIR_CHECK(start >= least && start <= i, ErrorCode::kInvalidArgument, "Attention: the start of query ", i, " of row ",
               at / config.keys, " is ", start, ", expected ", least, "..", i);  // C8
  }
  return config;
}

namespace {

struct Forward {
  AttentionConfig config;
  const float *q, *k, *v, *sinks;
  float *y, *lse;  // lse may be null
};

// Running maximum and sum of one tile of queries.
struct RunningSoftmax {
  float top[kQueryTile], sum[kQueryTile];
};

// Turns one tile of scores into exp(s - top), with y and sum moved to the new top.
void Exponentiate(const AttentionConfig& c, int64_t b, const AttentionTile& tile, float* scores,
                  RunningSoftmax& state, float* y) {
  for (int64_t row = 0; row < tile.i.size(); ++row) {
    const Span visible = tile.Visible(c, b, row);
    if (visible.size() <= 0) continue;
    float* s = scores + row * kKeyTile + visible.begin;
    const float top = std::max(state.top[row], MaxOf(s, visible.size()));
    const float correction = std::exp(state.top[row] - top);
    state.sum[row] = state.sum[row] * correction + ExpInPlace(s, visible.size(), top);
    state.top[row] = top;
    float* y_row = y + row * c.q_heads * c.dv;
    if (correction != 1) CopyScaled(y_row, c.dv, correction, y_row);
  }
}

void ForwardQueries(const Forward& g, int64_t b, int64_t h, Span i) {
  const AttentionConfig& c = g.config;
  alignas(64) float scores[kQueryTile * kKeyTile];
  RunningSoftmax state;
  std::fill_n(state.top, kQueryTile,
              g.sinks ? g.sinks[h] : -std::numeric_limits<float>::infinity());
  std::fill_n(state.sum, kQueryTile, g.sinks ? 1.0f : 0.0f);
  float* y = g.y + c.Y(b, i.begin, h);
  const int64_t y_stride = c.q_heads * c.dv;
  for (int64_t row = 0; row < i.size(); ++row) std::fill_n(y + row * y_stride, c.dv, 0.0f);
  const Span tiles = KeyTiles(c, b, i);
  for (int64_t t = tiles.begin; t < tiles.end; ++t) {
    const AttentionTile tile{i, KeyTile(c, t)};
    TileScores(c, g.q, g.k, b, h, tile, scores);
    Exponentiate(c, b, tile, scores, state, y);
    Sgemm(i.size(), c.dv, tile.j.size(), scores, kKeyTile,
          g.v + c.V(b, tile.j.begin, h / c.group()), c.kv_heads * c.dv, y, y_stride,
          {.accumulate = true});
  }
  for (int64_t row = 0; row < i.size(); ++row) {
    CopyScaled(y + row * y_stride, c.dv, 1 / state.sum[row], y + row * y_stride);
    if (g.lse != nullptr) {
      g.lse[c.Lse(b, h, i.begin + row)] = state.top[row] + std::log(state.sum[row]);
    }
  }
}

void LaunchAttention(KernelContext& c) {
  const auto float_or_null = [](const Tensor& t) { return t ? t.data<float>() : nullptr; };
  const Forward g{.config = ConfigOf(c, 4),
                  .q = c.inputs[0].data<float>(),
                  .k = c.inputs[1].data<float>(),
                  .v = c.inputs[2].data<float>(),
                  .sinks = c.has(3) ? c.inputs[3].data<float>() : nullptr,
                  .y = c.outputs[0].data<float>(),
                  .lse = c.outputs.size() > 1 ? float_or_null(c.outputs[1]) : nullptr};
  const int64_t tiles = QueryTileCount(g.config);
  ParallelFor(g.config.batch * g.config.q_heads * tiles, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / tiles;
      ForwardQueries(g, row / g.config.q_heads, row % g.config.q_heads,
                     QueryTile(g.config, Folded(task % tiles, tiles)));
    }
  });
}

}  // namespace

const Kernel& AttentionCpuKernel() {
  static const Kernel kernel{.launch = LaunchAttention};
  return kernel;
}

}  // namespace weir
