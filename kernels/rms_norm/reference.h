#pragma once
#include <cmath>

#include "graph/eval.h"

namespace weir {

// y[n,h] = gamma[h] * x[n,h] * rstd[n],  rstd[n] = 1 / sqrt(mean_h(x[n,h]^2) + epsilon)
// Holomorphic in x and gamma, so T may be std::complex<double>.
template <class T>
void RmsNormReference(Eval<T>& e) {
  const Array<T>&x = e.floats(0), &gamma = e.floats(1);
  const int64_t h = gamma.elements(), n = h == 0 ? 0 : x.elements() / h;
  const T epsilon(static_cast<float>(e.attributes.Float("epsilon", 1e-5)));
  e.out[0] = Array<T>::Floats(x.dims);
  Array<T> rstd = Array<T>::Floats(Dims(x.dims.begin(), x.dims.end() - 1));
  for (int64_t i = 0; i < n; ++i) {
    T sum{};
    for (int64_t j = 0; j < h; ++j) sum += x.f[i * h + j] * x.f[i * h + j];
    rstd.f[i] = T(1) / std::sqrt(sum / T(static_cast<float>(h)) + epsilon);
    for (int64_t j = 0; j < h; ++j) e.out[0].f[i * h + j] = gamma.f[j] * (x.f[i * h + j] * rstd.f[i]);
  }
  if (e.out.size() > 1) e.out[1] = std::move(rstd);
}

// dx = rstd * (gamma * dy) - x * rstd^3 / H * sum_h(gamma * dy * x);  dgamma = sum_n dy * x * rstd
template <class T>
void RmsNormGradientReference(Eval<T>& e) {
  const Array<T>&x = e.floats(0), &gamma = e.floats(1), &rstd = e.floats(2), &dy = e.floats(3);
  const int64_t h = gamma.elements(), n = h == 0 ? 0 : x.elements() / h;
  e.out[0] = Array<T>::Floats(x.dims);
  Array<T> dgamma = Array<T>::Floats(gamma.dims);
  for (int64_t i = 0; i < n; ++i) {
    const T r = rstd.f[i];
    T dot{};
    for (int64_t j = 0; j < h; ++j) dot += gamma.f[j] * dy.f[i * h + j] * x.f[i * h + j];
    dot *= r * r * r / T(static_cast<float>(h));
    for (int64_t j = 0; j < h; ++j) {
      e.out[0].f[i * h + j] = r * gamma.f[j] * dy.f[i * h + j] - dot * x.f[i * h + j];
      dgamma.f[j] += dy.f[i * h + j] * x.f[i * h + j] * r;
    }
  }
  if (e.out.size() > 1) {
    if (e.has(4)) {
      for (int64_t j = 0; j < h; ++j) dgamma.f[j] += e.floats(4).f[j];
    }
    e.out[1] = std::move(dgamma);
  }
}

}  // namespace weir
