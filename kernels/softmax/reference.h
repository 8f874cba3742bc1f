#pragma once
#include <cmath>
#include <complex>
#include <limits>

#include "graph/eval.h"
#include "kernels/common/axis_view.h"

namespace weir {

// y = exp(x - m) / sum exp(x - m), m the row's maximum; log form: x - m - ln(sum). A row of -inf is
// NaN.
template <bool log, class T>
void SoftmaxReference(Eval<T>& e) {
  const Array<T>& x = e.floats(0);
  const AxisView view = ViewAxis(x.dims, e.attributes.Int("axis", -1));
  e.out[0] = x;
  std::vector<T>& y = e.out[0].f;
  for (int64_t row = 0; row < view.outer * view.inner; ++row) {
    const int64_t base = row / view.inner * view.size * view.inner + row % view.inner;
    const auto at = [&](int64_t j) -> T& { return y[static_cast<size_t>(base + j * view.inner)]; };
    double top = -std::numeric_limits<double>::infinity();
    for (int64_t j = 0; j < view.size; ++j) top = std::max(top, Real(at(j)));
    T sum{};
    for (int64_t j = 0; j < view.size; ++j) {
      at(j) -= T(top);
      const T power = std::exp(at(j));
      sum += power;
      if (!log) at(j) = power;
    }
    for (int64_t j = 0; j < view.size; ++j) at(j) = log ? at(j) - std::log(sum) : at(j) / sum;
  }
}

// dx = y * (dy - sum(dy * y)); log form (y = log-softmax): dx = dy - e^y * sum(dy).
template <class T>
void SoftmaxGradientReference(Eval<T>& e) {
  const Array<T>&y = e.floats(0), &dy = e.floats(1);
  const bool log = e.attributes.Int("log", 0) != 0;
  const AxisView view = ViewAxis(y.dims, e.attributes.Int("axis", -1));
  e.out[0] = Array<T>::Floats(y.dims);
  for (int64_t row = 0; row < view.outer * view.inner; ++row) {
    const int64_t base = row / view.inner * view.size * view.inner + row % view.inner;
    T sum{};
    for (int64_t j = 0; j < view.size; ++j) {
      const auto k = static_cast<size_t>(base + j * view.inner);
      sum += log ? dy.f[k] : dy.f[k] * y.f[k];
    }
    for (int64_t j = 0; j < view.size; ++j) {
      const auto k = static_cast<size_t>(base + j * view.inner);
      e.out[0].f[k] = log ? dy.f[k] - std::exp(y.f[k]) * sum : y.f[k] * (dy.f[k] - sum);
    }
  }
}

}  // namespace weir
