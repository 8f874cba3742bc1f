#pragma once
#include "graph/eval.h"

namespace weir {

// y[n,m] = sum_k x[n,k] * weight[m,k] + bias[m]
template <class T>
void LinearReference(Eval<T>& e) {
  const Array<T>&x = e.floats(0), &weight = e.floats(1);
  const int64_t m = weight.dims[0], k = weight.dims[1];
  Dims dims = x.dims;
  dims.back() = m;
  e.out[0] = Array<T>::Floats(dims);
  const int64_t n = NumElements(Dims(dims.begin(), dims.end() - 1));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < m; ++j) {
      T sum{};
      for (int64_t p = 0; p < k; ++p) sum += x.f[i * k + p] * weight.f[j * k + p];
      e.out[0].f[i * m + j] = e.has(2) ? sum + e.floats(2).f[j] : sum;
    }
  }
}

// dW[m,k] = acc[m,k] + sum_n dy[n,m] * x[n,k]
template <class T>
void LinearWeightGradientReference(Eval<T>& e) {
  const Array<T>&x = e.floats(0), &dy = e.floats(1);
  const int64_t k = x.dims.back(), m = dy.dims.back();
  const int64_t n = NumElements(Dims(x.dims.begin(), x.dims.end() - 1));
  Array<T> dw = Array<T>::Floats({m, k});
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < m; ++j) {
      for (int64_t p = 0; p < k; ++p) dw.f[j * k + p] += dy.f[i * m + j] * x.f[i * k + p];
    }
  }
  for (size_t j = 0; e.has(2) && j < dw.f.size(); ++j) dw.f[j] += e.floats(2).f[j];
  e.out[0] = std::move(dw);
}

// db[m] = acc[m] + sum_n dy[n,m]
template <class T>
void BiasGradientReference(Eval<T>& e) {
  const Array<T>& dy = e.floats(0);
  const int64_t m = dy.dims.back();
  Array<T> db = Array<T>::Floats({m});
  for (int64_t i = 0; i < dy.elements(); ++i) db.f[i % m] += dy.f[i];
  for (int64_t j = 0; e.has(1) && j < m; ++j) db.f[j] += e.floats(1).f[j];
  e.out[0] = std::move(db);
}

}  // namespace weir
