#pragma once
#include <initializer_list>

#include "kernels/cross_entropy/reference.h"
#include "kernels/linear/reference.h"

namespace weir {

// logits = x weight^T; loss = CrossEntropy(logits); dx = dlogits weight; dW = acc + dlogits^T x
template <class T>
void RingDtpReference(Eval<T>& e) {
  const auto run = [&e](void (*reference)(Eval<T>&), std::initializer_list<const Array<T>*> in,
                        size_t outputs) {
    Eval<T> step{.attributes = e.attributes, .in = in, .out = {}};
    step.out.resize(outputs);
    reference(step);
    return std::move(step.out);
  };
  const Array<T>&x = e.floats(0), &weight = e.floats(1), &labels = Integers(e, 2), &scale = e.floats(3);
  const int64_t v = weight.dims[0], h = weight.dims[1], n = labels.elements();
  const Array<T> one = Array<T>::Floats({}, T(1));
  const Array<T> logits = run(LinearReference<T>, {&x, &weight}, 1)[0];
  const Array<T>* weights = e.has(5) ? &e.floats(5) : nullptr;
  auto loss = run(CrossEntropyReference<T>, {&logits, &labels, &scale, weights}, 2);
  const Array<T> dlogits =
      run(CrossEntropyGradientReference<T>, {&logits, &labels, &loss[1], &scale, &one, weights}, 1)[0];
  Array<T> dx = Array<T>::Floats(x.dims);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < v; ++j) {
      for (int64_t p = 0; p < h; ++p) dx.f[i * h + p] += dlogits.f[i * v + j] * weight.f[j * h + p];
    }
  }
  e.out[0] = std::move(loss[0]);
  if (e.out.size() > 1) e.out[1] = std::move(dx);
  if (e.out.size() > 2) {
    e.out[2] =
        run(LinearWeightGradientReference<T>, {&x, &dlogits, e.has(4) ? &e.floats(4) : nullptr}, 1)[0];
  }
}

}  // namespace weir
