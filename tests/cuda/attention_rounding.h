#pragma once
#include <cmath>
#include <vector>

#include "graph/dtype.h"
#include "graph/eval.h"
#include "kernels/attention/config.h"
#include "kernels/attention/reference.h"

// Attention as every bfloat16 flash attention rounds it, in float64 otherwise: the probabilities and the scores'
// gradients are rounded where they enter a matrix product, and so are the results. What a kernel may be wrong by is
// what these roundings make, not a guess.
namespace weir {

inline double Rounded(double value) { return BFloat16ToFloat(FloatToBFloat16(static_cast<float>(value))); }

inline std::vector<Array<double>> RoundedAttention(const Attributes& attributes, const std::vector<Array<double>>& in) {
  AttentionConfig c(attributes, in[0].dims, in[1].dims, in[2].dims);
  if (in.size() > 4) c.starts = in[4].i.data();
  const bool sinks = in.size() > 3 && !in[3].f.empty();
  auto y = Array<double>::Floats({c.batch, c.queries, c.q_heads, c.dv});
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t h = 0; h < c.q_heads; ++h) {
      for (int64_t i = 0; i < c.queries; ++i) {
        const std::vector<double> s = AttentionScores(c, in[0], in[1], b, i, h);
        double top = sinks ? in[3].f[h] : s[0], sum = 0;
        for (double score : s) top = std::max(top, score);
        if (sinks) sum = std::exp(in[3].f[h] - top);
        for (double score : s) sum += std::exp(score - top);
        for (size_t j = 0; j < s.size(); ++j) {
          const double p = Rounded(std::exp(s[j] - top));
          const int64_t row = c.V(b, c.FirstKey(b, i) + static_cast<int64_t>(j), h / c.group());
          for (int64_t d = 0; d < c.dv; ++d) y.f[c.Y(b, i, h) + d] += p / sum * in[2].f[row + d];
        }
      }
    }
  }
  for (double& value : y.f) value = Rounded(value);
  return {y};
}

// dq, dk and dv. The library adds what it made of the keys for each of two runs of queries, rounded.
inline std::vector<Array<double>> RoundedAttentionGradient(const Attributes& attributes,
                                                           const std::vector<Array<double>>& in) {
  const Array<double>&q = in[0], &k = in[1], &v = in[2], &y = in[3], &lse = in[4], &dy = in[5];
  AttentionConfig c(attributes, q.dims, k.dims, v.dims);
  if (in.size() > 8) c.starts = in[8].i.data();
  auto dq = Array<double>::Floats(q.dims);
  std::vector<Array<double>> dks(2, Array<double>::Floats(k.dims)), dvs(2, Array<double>::Floats(v.dims));  // by run
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t h = 0; h < c.q_heads; ++h) {
      for (int64_t i = 0; i < c.queries; ++i) {
        std::vector<double> slope;
        const std::vector<double> s = AttentionScores(c, q, k, b, i, h, &slope);
        const int64_t row = c.Y(b, i, h), kv = h / c.group();
        Array<double>&dk = dks[i < c.run() ? 0 : 1], &dv = dvs[i < c.run() ? 0 : 1];
        double delta = 0;
        for (int64_t d = 0; d < c.dv; ++d) delta += dy.f[row + d] * y.f[row + d];
        for (size_t n = 0; n < s.size(); ++n) {
          const int64_t j = c.FirstKey(b, i) + static_cast<int64_t>(n);
          const double p = std::exp(s[n] - lse.f[c.Lse(b, h, i)]);
          double dp = 0;
          for (int64_t d = 0; d < c.dv; ++d) {
            dp += dy.f[row + d] * v.f[c.V(b, j, kv) + d];
            dv.f[c.V(b, j, kv) + d] += Rounded(p) * dy.f[row + d];
          }
          const double ds = Rounded(p * (dp - delta) * slope[n]) * c.scale;
          for (int64_t d = 0; d < c.d; ++d) {
            dq.f[c.Q(b, i, h) + d] += ds * k.f[c.K(b, j, kv) + d];
            dk.f[c.K(b, j, kv) + d] += ds * q.f[c.Q(b, i, h) + d];
          }
        }
      }
    }
  }
  for (Array<double>* out : {&dq, &dks[0], &dks[1], &dvs[0], &dvs[1]}) {
    for (double& value : out->f) value = Rounded(value);
  }
  for (auto* runs : {&dks, &dvs}) {
    for (size_t i = 0; i < runs->front().f.size(); ++i) runs->front().f[i] = Rounded(runs->front().f[i] + runs->back().f[i]);
  }
  return {dq, dks[0], dvs[0]};
}

}  // namespace weir
