#pragma once
#include "graph/eval.h"
#include "kernels/mat_mul/geometry.h"

namespace weir {

// y = a b: NumPy matmul
template <class T>
void MatMulReference(Eval<T>& e) {
  const Array<T>&a = e.floats(0), &b = e.floats(1);
  const MatMulGeometry g = MakeMatMulGeometry(a.dims, b.dims);
  Array<T> y = Array<T>::Floats(g.y);
  for (int64_t batch = 0; batch < g.batches; ++batch) {
    const auto [ai, bi] = g.Matrices(batch);
    for (int64_t i = 0; i < g.m; ++i) {
      for (int64_t j = 0; j < g.n; ++j) {
        T sum{};
        for (int64_t p = 0; p < g.k; ++p) {
          sum += a.f[(ai * g.m + i) * g.k + p] * b.f[(bi * g.k + p) * g.n + j];
        }
        y.f[(batch * g.m + i) * g.n + j] = sum;
      }
    }
  }
  e.out[0] = std::move(y);
}

// input 0: da = sum over broadcast batches of dy b^T;  input 1: db = sum of a^T dy
template <class T>
void MatMulGradientReference(Eval<T>& e) {
  const Array<T>&a = e.floats(0), &b = e.floats(1), &dy = e.floats(2);
  const bool left = e.attributes.Int("input") == 0;
  const MatMulGeometry g = MakeMatMulGeometry(a.dims, b.dims);
  Array<T> out = Array<T>::Floats(left ? a.dims : b.dims);
  for (int64_t batch = 0; batch < g.batches; ++batch) {
    const auto [ai, bi] = g.Matrices(batch);
    for (int64_t i = 0; i < g.m; ++i) {
      for (int64_t j = 0; j < g.n; ++j) {
        const T d = dy.f[(batch * g.m + i) * g.n + j];
        for (int64_t p = 0; p < g.k; ++p) {
          const int64_t at_a = (ai * g.m + i) * g.k + p, at_b = (bi * g.k + p) * g.n + j;
          if (left) {
            out.f[at_a] += d * b.f[at_b];
          } else {
            out.f[at_b] += d * a.f[at_a];
          }
        }
      }
    }
  }
  e.out[0] = std::move(out);
}

}  // namespace weir
