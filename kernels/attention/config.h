#pragma once
#include <algorithm>
#include <cmath>

#include "graph/attributes.h"
#include "graph/shape.h"
#include "kernels/common/row_share.h"

namespace weir {

// Sizes and options of one attention launch. The queries are a share of the sequence's rows (all, of one share): runs of
// them that lie behind each other.
struct AttentionConfig {
  int64_t batch, queries, keys, q_heads, kv_heads, d, dv;
  bool causal;
  int64_t window;  // 0 = none
  float scale, softcap;
  RowShare rows;
  const int64_t* starts = nullptr;  // [B,keys], the first key of the query at each position; null = 0

  AttentionConfig(const Attributes& attributes, const Dims& q, const Dims& k, const Dims& v)
      : batch(q[0]),
        queries(q[1]),
        keys(k[1]),
        q_heads(q[2]),
        kv_heads(k[2]),
        d(q[3]),
        dv(v[3]),
        causal(attributes.Int("causal", 1) != 0),
        window(attributes.Int("window", 0)),
        scale(static_cast<float>(attributes.Float(
            "scale", 1 / std::sqrt(static_cast<double>(std::max<int64_t>(d, 1)))))),
        softcap(static_cast<float>(attributes.Float("softcap", 0))),
        rows{attributes.Int("row_shares", 1), attributes.Int("row_share", 0)} {}

  int64_t group() const { return q_heads / kv_heads; }
  int64_t run() const { return queries / rows.runs(); }  // queries of a run
  int64_t FirstPosition(int64_t of_run) const { return rows.Run(of_run) * run(); }
  // Of query i in the sequence.
  int64_t Position(int64_t i) const { return i < run() ? FirstPosition(0) + i : FirstPosition(1) + i - run(); }
  // Query i of row b sees keys [FirstKey(b, i), EndKey(i)).
  int64_t FirstKey(int64_t b, int64_t i) const {
    const int64_t position = Position(i), start = starts == nullptr ? 0 : starts[b * keys + position];
    return window > 0 ? std::max(start, position - window + 1) : start;
  }
  int64_t EndKey(int64_t i) const { return causal ? Position(i) + 1 : keys; }
  // Offsets of the first channel of one row.
  int64_t Q(int64_t b, int64_t i, int64_t h) const {
    return ((b * queries + i) * q_heads + h) * d;
  }
  int64_t K(int64_t b, int64_t j, int64_t h) const {
    return ((b * keys + j) * kv_heads + h) * d;
  }
  int64_t V(int64_t b, int64_t j, int64_t h) const {
    return ((b * keys + j) * kv_heads + h) * dv;
  }
  int64_t Y(int64_t b, int64_t i, int64_t h) const {
    return ((b * queries + i) * q_heads + h) * dv;
  }
  int64_t Lse(int64_t b, int64_t h, int64_t i) const { return (b * q_heads + h) * queries + i; }
};

}  // namespace weir
