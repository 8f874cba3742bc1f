#pragma once
#include "graph/eval.h"

namespace weir {

// y = alpha * a' b' + beta * c; a' = a^T when transA, b' = b^T when transB; c broadcasts to y
template <class T>
void GemmReference(Eval<T>& e) {
  const Array<T>&a = e.x(0), &b = e.x(1);
  const bool ta = e.attributes.Int("transA", 0) != 0, tb = e.attributes.Int("transB", 0) != 0;
  const T alpha(static_cast<float>(e.attributes.Float("alpha", 1)));
  const T beta(static_cast<float>(e.attributes.Float("beta", 1)));
  const int64_t m = a.dims[ta ? 1 : 0], k = a.dims[ta ? 0 : 1], n = b.dims[tb ? 0 : 1];
  const Dims cd = e.has(2) ? e.x(2).dims : Dims{};
  const int64_t c_row = cd.size() == 2 && cd[0] > 1 ? cd[1] : 0;
  const int64_t c_column = !cd.empty() && cd.back() > 1 ? 1 : 0;
  Array<T> y = Array<T>::Floats({m, n});
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      T sum{};
      for (int64_t p = 0; p < k; ++p) {
        sum += a.f[ta ? p * m + i : i * k + p] * b.f[tb ? j * k + p : p * n + j];
      }
      sum *= alpha;
      y.f[i * n + j] = e.has(2) ? sum + beta * e.x(2).f[i * c_row + j * c_column] : sum;
    }
  }
  e.out[0] = std::move(y);
}

}  // namespace weir
