#pragma once
#include <cmath>
#include <complex>

#include "graph/eval.h"
#include "kernels/elementwise/broadcast.h"

namespace weir {

// x as [rows, length]: axes from `axis` on are normalised together.
struct NormView {
  int64_t rows = 1, length = 1;
  Dims inner, statistics;  // the normalised dims; dims of mean and inverse deviation
};
NormView ViewNorm(const Dims& dims, int64_t axis);

// LayerNormalization (center): y = (x - mean) * r * gamma + beta, r = 1 / sqrt(var + epsilon);
// RMSNormalization: y = x * r * gamma, r = 1 / sqrt(mean(x^2) + epsilon).
// Extra outputs: mean (center only), r.
template <bool center, class T>
void NormReference(Eval<T>& e) {
  const Array<T>& x = e.floats(0);
  const NormView view = ViewNorm(x.dims, e.attributes.Int("axis", -1));
  const auto gamma = BroadcastIndex(e.floats(1).dims, view.inner);
  const auto beta = e.has(2) ? BroadcastIndex(e.floats(2).dims, view.inner) : std::vector<int64_t>{};
  const T epsilon(static_cast<float>(e.attributes.Float("epsilon", 1e-5f)));
  const T count(static_cast<float>(view.length));
  e.out[0] = x;
  Array<T> means = Array<T>::Floats(view.statistics), inverses = means;
  for (int64_t row = 0; row < view.rows; ++row) {
    const T* in = x.f.data() + row * view.length;
    T mean{}, square{};
    if (center) {
      for (int64_t j = 0; j < view.length; ++j) mean += in[j];
      mean /= count;
    }
    for (int64_t j = 0; j < view.length; ++j) square += (in[j] - mean) * (in[j] - mean);
    const T inverse = T(1) / std::sqrt(square / count + epsilon);
    for (int64_t j = 0; j < view.length; ++j) {
      T& y = e.out[0].f[row * view.length + j];
      y = (in[j] - mean) * inverse * e.floats(1).f[gamma[j]];
      if (e.has(2)) y += e.floats(2).f[beta[j]];
    }
    means.f[row] = mean;
    inverses.f[row] = inverse;
  }
  if (center && e.out.size() > 1) e.out[1] = std::move(means);
  const size_t last = center ? 2 : 1;
  if (e.out.size() > last) e.out[last] = std::move(inverses);
}

// With h = (x - mean) * r and g = gamma * dy: dx = r * (g - mean(g) - h * mean(g * h)),
// dgamma = sum over rows of dy * h, dbeta = sum over rows of dy. Statistics are recomputed.
template <class T>
void LayerNormGradientReference(Eval<T>& e) {
  const Array<T>&x = e.floats(0), &gamma = e.floats(1), &dy = e.floats(2);
  const NormView view = ViewNorm(x.dims, e.attributes.Int("axis", -1));
  const T epsilon(static_cast<float>(e.attributes.Float("epsilon", 1e-5f)));
  const T count(static_cast<float>(view.length));
  e.out[0] = Array<T>::Floats(x.dims);
  Array<T> dgamma = Array<T>::Floats(gamma.dims), dbeta = dgamma;
  for (int64_t row = 0; row < view.rows; ++row) {
    const int64_t base = row * view.length;
    T mean{}, square{}, mean_g{}, mean_gh{};
    for (int64_t j = 0; j < view.length; ++j) mean += x.f[base + j] / count;
    for (int64_t j = 0; j < view.length; ++j)
      square += (x.f[base + j] - mean) * (x.f[base + j] - mean);
    const T r = T(1) / std::sqrt(square / count + epsilon);
    for (int64_t j = 0; j < view.length; ++j) {
      const T h = (x.f[base + j] - mean) * r, g = gamma.f[j] * dy.f[base + j];
      mean_g += g / count;
      mean_gh += g * h / count;
      dgamma.f[j] += dy.f[base + j] * h;
      dbeta.f[j] += dy.f[base + j];
    }
    for (int64_t j = 0; j < view.length; ++j) {
      const T h = (x.f[base + j] - mean) * r;
      e.out[0].f[base + j] = r * (gamma.f[j] * dy.f[base + j] - mean_g - h * mean_gh);
    }
  }
  for (size_t o = 1; o < e.out.size(); ++o) {
    e.out[o] = o == 1 ? dgamma : dbeta;
    for (size_t j = 0; e.has(o + 2) && j < e.out[o].f.size(); ++j) e.out[o].f[j] += e.floats(o + 2).f[j];
  }
}

}  // namespace weir
