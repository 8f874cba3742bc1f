#pragma once
#include <bit>
#include <cmath>

#include "graph/dtype.h"
#include "graph/eval.h"
#include "graph/split_master.h"
#include "kernels/common/integer_inputs.h"
#include "kernels/adamw/config.h"

namespace weir {

inline uint32_t FloatBits(double value) { return std::bit_cast<uint32_t>(static_cast<float>(value)); }

// Masters of two halves, and v without their ties.
template <class T>
void JoinMasters(const Array<T>& low, Array<T>& p, Array<T>& v) {
  for (size_t i = 0; i < p.f.size(); ++i) {
    const uint32_t stored = FloatBits(Real(v.f[i])), high = FloatBits(Real(p.f[i])) >> 16;
    const uint32_t bits = JoinMaster(static_cast<uint16_t>(high), static_cast<uint16_t>(low.i[i]), TieOf(stored));
    p.f[i] = T(static_cast<double>(std::bit_cast<float>(bits)));
    if (TieOf(stored) != 0) v.f[i] = -v.f[i];
  }
}

template <class T>
void SplitMasters(Array<T>& low, Array<T>& p, Array<T>& v) {
  for (size_t i = 0; i < p.f.size(); ++i) {
    const SplitBits halves = SplitMaster(FloatBits(Real(p.f[i])));
    p.f[i] = T(static_cast<double>(BFloat16ToFloat(halves.high)));
    low.i[i] = halves.low;
    if (halves.tie != 0) v.f[i] = -v.f[i];
  }
}

template <class T>
void AdamWReference(Eval<T>& e) {
  Array<T> p = e.floats(0), m = e.floats(2), v = e.floats(3);
  const Array<T>& gradient = e.floats(1);
  const AdamWStep s(e.attributes, Real(e.floats(4).f[0]), Integers(e, 5).i[0]);
  const T coefficient = e.floats(6).f[0];
  const bool split = e.has(7);
  Array<T> low = split ? e.x(7) : Array<T>{};
  if (std::isfinite(Real(coefficient))) {
    if (split) JoinMasters(low, p, v);
    for (size_t i = 0; i < p.f.size(); ++i) {
      const T g = gradient.f[i] * coefficient;
      p.f[i] *= T(s.decay);
      m.f[i] += T(1 - s.beta1) * (g - m.f[i]);
      v.f[i] = T(s.beta2) * v.f[i] + T(1 - s.beta2) * g * g;
      p.f[i] -=
          T(s.step_size) * m.f[i] / (std::sqrt(v.f[i]) / T(s.root_correction2) + T(s.epsilon));
    }
    if (split) SplitMasters(low, p, v);
  }
  e.out[0] = std::move(p);
  e.out[1] = std::move(m);
  e.out[2] = std::move(v);
  if (split) e.out[3] = std::move(low);
}

}  // namespace weir
