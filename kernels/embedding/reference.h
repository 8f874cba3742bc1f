#pragma once
#include "graph/eval.h"
#include "kernels/common/integer_inputs.h"
#include "kernels/embedding/check_ids.h"

namespace weir {

// y[n,h] = weight[ids[n],h]
template <class T>
void EmbeddingReference(Eval<T>& e) {
  const Array<T>&ids = Integers(e, 0), &weight = e.floats(1);
  const int64_t h = weight.dims[1];
  CheckIds(ids.i, ids.dims.empty() ? 1 : ids.dims.back(), weight.dims[0]);
  Dims dims = ids.dims;
  dims.push_back(h);
  e.out[0] = Array<T>::Floats(dims);
  for (size_t n = 0; n < ids.i.size(); ++n) {
    for (int64_t j = 0; j < h; ++j) {
      e.out[0].f[static_cast<int64_t>(n) * h + j] = weight.f[ids.i[n] * h + j];
    }
  }
}

// dW[v,h] = acc[v,h] + sum over n with ids[n] = v of dy[n,h]
template <class T>
void EmbeddingGradientReference(Eval<T>& e) {
  const Array<T>&ids = Integers(e, 0), &dy = e.floats(1);
  const int64_t h = dy.dims.back();
  Array<T> dw = Array<T>::Floats({e.has(2) ? e.floats(2).dims[0] : e.attributes.Int("rows"), h});
  CheckIds(ids.i, ids.dims.empty() ? 1 : ids.dims.back(), dw.dims[0]);
  for (size_t n = 0; n < ids.i.size(); ++n) {
    for (int64_t j = 0; j < h; ++j) dw.f[ids.i[n] * h + j] += dy.f[static_cast<int64_t>(n) * h + j];
  }
  for (size_t j = 0; e.has(2) && j < dw.f.size(); ++j) dw.f[j] += e.floats(2).f[j];
  e.out[0] = std::move(dw);
}

}  // namespace weir
