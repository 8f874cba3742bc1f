#pragma once
#include <algorithm>
#include <cmath>

#include "graph/attributes.h"
#include "graph/shape.h"

namespace weir {

// Sizes and options of one attention launch.
struct AttentionConfig {
  int64_t batch, sequence, q_heads, kv_heads, d, dv;
  bool causal;
  int64_t window;  // 0 = none
  float scale, softcap;
  const int64_t* starts = nullptr;  // [B,S], the first key of each query; null = 0

  AttentionConfig(const Attributes& attributes, const Dims& q, const Dims& k, const Dims& v)
      : batch(q[0]),
        sequence(q[1]),
        q_heads(q[2]),
        kv_heads(k[2]),
        d(q[3]),
        dv(v[3]),
        causal(attributes.Int("causal", 1) != 0),
        window(attributes.Int("window", 0)),
        scale(static_cast<float>(attributes.Float(
            "scale", 1 / std::sqrt(static_cast<double>(std::max<int64_t>(d, 1)))))),
        softcap(static_cast<float>(attributes.Float("softcap", 0))) {}

  int64_t group() const { return q_heads / kv_heads; }
  // Query i of row b sees keys [FirstKey(b, i), EndKey(i)).
  int64_t FirstKey(int64_t b, int64_t i) const {
    const int64_t start = starts == nullptr ? 0 : starts[b * sequence + i];
    return window > 0 ? std::max(start, i - window + 1) : start;
  }
  int64_t EndKey(int64_t i) const { return causal ? i + 1 : sequence; }
  // Offsets of the first channel of one row.
  int64_t Q(int64_t b, int64_t i, int64_t h) const {
    return ((b * sequence + i) * q_heads + h) * d;
  }
  int64_t K(int64_t b, int64_t j, int64_t h) const {
    return ((b * sequence + j) * kv_heads + h) * d;
  }
  int64_t V(int64_t b, int64_t j, int64_t h) const {
    return ((b * sequence + j) * kv_heads + h) * dv;
  }
  int64_t Y(int64_t b, int64_t i, int64_t h) const {
    return ((b * sequence + i) * q_heads + h) * dv;
  }
  int64_t Lse(int64_t b, int64_t h, int64_t i) const { return (b * q_heads + h) * sequence + i; }
};

}  // namespace weir
