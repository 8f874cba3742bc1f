#pragma once
#include <cmath>

#include "graph/eval.h"
#include "kernels/common/integer_inputs.h"
#include "kernels/adamw/config.h"

namespace weir {

template <class T>
void AdamWReference(Eval<T>& e) {
  Array<T> p = e.floats(0), m = e.floats(2), v = e.floats(3);
  const Array<T>& gradient = e.floats(1);
  const AdamWStep s(e.attributes, Real(e.floats(4).f[0]), Integers(e, 5).i[0]);
  const T coefficient = e.floats(6).f[0];
  if (std::isfinite(Real(coefficient))) {
    for (size_t i = 0; i < p.f.size(); ++i) {
      const T g = gradient.f[i] * coefficient;
      p.f[i] *= T(s.decay);
      m.f[i] += T(1 - s.beta1) * (g - m.f[i]);
      v.f[i] = T(s.beta2) * v.f[i] + T(1 - s.beta2) * g * g;
      p.f[i] -=
          T(s.step_size) * m.f[i] / (std::sqrt(v.f[i]) / T(s.root_correction2) + T(s.epsilon));
    }
  }
  e.out[0] = std::move(p);
  e.out[1] = std::move(m);
  e.out[2] = std::move(v);
}

}  // namespace weir
