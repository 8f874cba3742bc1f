#pragma once
#include <utility>

#include "graph/eval.h"

namespace weir {

// Strides of c, broadcast to a matrix, along rows and columns.
inline std::pair<int64_t, int64_t> GemmBiasStrides(const Dims& c) {
  return {c.size() == 2 && c[0] > 1 ? c[1] : 0, !c.empty() && c.back() > 1 ? 1 : 0};
}

// y = alpha * a' b' + beta * c; a' = a^T when transA, b' = b^T when transB; c broadcasts to y
template <class T>
void GemmReference(Eval<T>& e) {
  const Array<T>&a = e.floats(0), &b = e.floats(1);
  const bool ta = e.attributes.Int("transA", 0) != 0, tb = e.attributes.Int("transB", 0) != 0;
  const T alpha(static_cast<float>(e.attributes.Float("alpha", 1)));
  const T beta(static_cast<float>(e.attributes.Float("beta", 1)));
  const int64_t m = a.dims[ta ? 1 : 0], k = a.dims[ta ? 0 : 1], n = b.dims[tb ? 0 : 1];
  const auto [c_row, c_column] = GemmBiasStrides(e.has(2) ? e.floats(2).dims : Dims{});
  Array<T> y = Array<T>::Floats({m, n});
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      T sum{};
      for (int64_t p = 0; p < k; ++p) {
        sum += a.f[ta ? p * m + i : i * k + p] * b.f[tb ? j * k + p : p * n + j];
      }
      sum *= alpha;
      y.f[i * n + j] = e.has(2) ? sum + beta * e.floats(2).f[i * c_row + j * c_column] : sum;
    }
  }
  e.out[0] = std::move(y);
}

// dc = beta * dy summed over the axes that c broadcasts
template <class T>
void GemmBiasGradientReference(Eval<T>& e) {
  const Array<T>&c = e.floats(0), &dy = e.floats(1);
  const T beta(static_cast<float>(e.attributes.Float("beta", 1)));
  const auto [c_row, c_column] = GemmBiasStrides(c.dims);
  Array<T> dc = Array<T>::Floats(c.dims);
  for (int64_t i = 0; i < dy.dims[0]; ++i) {
    for (int64_t j = 0; j < dy.dims[1]; ++j)
      dc.f[i * c_row + j * c_column] += dy.f[i * dy.dims[1] + j];
  }
  for (T& value : dc.f) value *= beta;
  e.out[0] = std::move(dc);
}

}  // namespace weir
