#pragma once
#include <cmath>

#include "graph/eval.h"
#include "kernels/common/integer_inputs.h"
#include "kernels/cross_entropy/labels.h"
#include "kernels/cross_entropy/token_weights.h"

namespace weir {

template <class T>
void CrossEntropyReference(Eval<T>& e) {
  const Array<T>&logits = e.floats(0), &labels = Integers(e, 1);
  const int64_t n = labels.elements(), v = logits.dims.back();
  const int64_t ignore_index = e.attributes.Int("ignore_index", -100);
  const TokenWeights<T> weights{e.has(3) ? e.floats(3).f.data() : nullptr};
  Array<T> loss = Array<T>::Floats({}), lse = Array<T>::Floats(labels.dims);
  loss.dtype = DType::kFloat64;
  for (int64_t i = 0; i < n; ++i) {
    const T* row = logits.f.data() + i * v;
    T top = row[0], sum{};
    for (int64_t j = 1; j < v; ++j) top = Real(row[j]) > Real(top) ? row[j] : top;
    for (int64_t j = 0; j < v; ++j) sum += std::exp(row[j] - top);
    lse.f[i] = top + std::log(sum);
    if (!LabelCounts(labels.i[i], i, v, ignore_index) || weights[i] == T(0)) continue;
    loss.f[0] += weights[i] * (lse.f[i] - row[labels.i[i]]);
  }
  loss.f[0] *= e.floats(2).f[0];
  e.out[0] = std::move(loss);
  if (e.out.size() > 1) e.out[1] = std::move(lse);
}

template <class T>
void CrossEntropyGradientReference(Eval<T>& e) {
  const Array<T>&logits = e.floats(0), &labels = Integers(e, 1), &lse = e.floats(2);
  const int64_t n = labels.elements(), v = logits.dims.back();
  const int64_t ignore_index = e.attributes.Int("ignore_index", -100);
  const T factor = e.floats(3).f[0] * e.floats(4).f[0];
  const TokenWeights<T> weights{e.has(5) ? e.floats(5).f.data() : nullptr};
  Array<T> dlogits = Array<T>::Floats(logits.dims);
  for (int64_t i = 0; i < n; ++i) {
    if (!LabelCounts(labels.i[i], i, v, ignore_index) || weights[i] == T(0)) continue;
    for (int64_t j = 0; j < v; ++j) {
      const T p = std::exp(logits.f[i * v + j] - lse.f[i]);
      dlogits.f[i * v + j] = (p - T(j == labels.i[i] ? 1 : 0)) * (factor * weights[i]);
    }
  }
  e.out[0] = std::move(dlogits);
}

}  // namespace weir
