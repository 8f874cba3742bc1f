#pragma once
#include <cmath>

#include "graph/eval.h"
#include "kernels/attention/config.h"

namespace weir {

// Capped scores of query (b, i, h) against every key it sees; `slope`[j] is d(capped)/d(raw).
template <class T>
std::vector<T> AttentionScores(const AttentionConfig& c, const Array<T>& q, const Array<T>& k,
                               int64_t b, int64_t i, int64_t h, std::vector<T>* slope = nullptr) {
  std::vector<T> scores;
  for (int64_t j = c.FirstKey(b, i); j < c.EndKey(i); ++j) {
    T s{};
    for (int64_t d = 0; d < c.d; ++d) {
      s += q.f[c.Q(b, i, h) + d] * k.f[c.K(b, j, h / c.group()) + d];
    }
    s *= T(c.scale);
    const T t = c.softcap > 0 ? std::tanh(s / T(c.softcap)) : T(0);
    if (slope != nullptr) slope->push_back(T(1) - t * t);
    scores.push_back(c.softcap > 0 ? T(c.softcap) * t : s);
  }
  return scores;
}

template <class T>
void AttentionReference(Eval<T>& e) {
  const Array<T>&q = e.floats(0), &k = e.floats(1), &v = e.floats(2);
  AttentionConfig c(e.attributes, q.dims, k.dims, v.dims);
  if (e.has(4)) c.starts = e.x(4).i.data();
  Array<T> y = Array<T>::Floats({c.batch, c.queries, c.q_heads, c.dv});
  Array<T> lse = Array<T>::Floats({c.batch, c.q_heads, c.queries});
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t h = 0; h < c.q_heads; ++h) {
      for (int64_t i = 0; i < c.queries; ++i) {
        std::vector<T> p = AttentionScores(c, q, k, b, i, h);
        T top = e.has(3) ? e.floats(3).f[h] : p[0];
        for (const T& s : p) top = Real(s) > Real(top) ? s : top;
        T sum = e.has(3) ? std::exp(e.floats(3).f[h] - top) : T(0);
        for (T& s : p) sum += s = std::exp(s - top);
        for (size_t j = 0; j < p.size(); ++j) {
          const int64_t row = c.V(b, c.FirstKey(b, i) + static_cast<int64_t>(j), h / c.group());
          for (int64_t d = 0; d < c.dv; ++d) y.f[c.Y(b, i, h) + d] += p[j] / sum * v.f[row + d];
        }
        lse.f[c.Lse(b, h, i)] = top + std::log(sum);
      }
    }
  }
  e.out[0] = std::move(y);
  if (e.out.size() > 1) e.out[1] = std::move(lse);
}

// p = exp(s - lse), delta = dy . y, ds = p * (dy . v - delta) * slope * scale
template <class T>
void AttentionGradientReference(Eval<T>& e) {
  const Array<T>&q = e.floats(0), &k = e.floats(1), &v = e.floats(2), &y = e.floats(3), &lse = e.floats(4), &dy = e.floats(5);
  AttentionConfig c(e.attributes, q.dims, k.dims, v.dims);
  if (e.has(8)) c.starts = e.x(8).i.data();
  Array<T> dq = Array<T>::Floats(q.dims), dk = Array<T>::Floats(k.dims),
           dv = Array<T>::Floats(v.dims);
  Array<T> dsinks = Array<T>::Floats({c.q_heads});
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t h = 0; h < c.q_heads; ++h) {
      for (int64_t i = 0; i < c.queries; ++i) {
        std::vector<T> slope;
        const std::vector<T> s = AttentionScores(c, q, k, b, i, h, &slope);
        const T log_sum = lse.f[c.Lse(b, h, i)];
        const int64_t row = c.Y(b, i, h);
        T delta{};
        for (int64_t d = 0; d < c.dv; ++d) delta += dy.f[row + d] * y.f[row + d];
        if (e.has(6)) dsinks.f[h] -= std::exp(e.floats(6).f[h] - log_sum) * delta;
        for (size_t n = 0; n < s.size(); ++n) {
          const int64_t j = c.FirstKey(b, i) + static_cast<int64_t>(n), kv = h / c.group();
          const T p = std::exp(s[n] - log_sum);
          T dp{};
          for (int64_t d = 0; d < c.dv; ++d) {
            dp += dy.f[row + d] * v.f[c.V(b, j, kv) + d];
            dv.f[c.V(b, j, kv) + d] += p * dy.f[row + d];
          }
          const T ds = p * (dp - delta) * slope[n] * T(c.scale);
          for (int64_t d = 0; d < c.d; ++d) {
            dq.f[c.Q(b, i, h) + d] += ds * k.f[c.K(b, j, kv) + d];
            dk.f[c.K(b, j, kv) + d] += ds * q.f[c.Q(b, i, h) + d];
          }
        }
      }
    }
  }
  if (e.has(7)) {
    for (int64_t h = 0; h < c.q_heads; ++h) dsinks.f[h] += e.floats(7).f[h];
  }
  e.out[0] = std::move(dq);
  e.out[1] = std::move(dk);
  e.out[2] = std::move(dv);
  if (e.out.size() > 3) e.out[3] = std::move(dsinks);
}

}  // namespace weir
