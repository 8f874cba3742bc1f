#pragma once
#include <cmath>
#include <limits>

#include "graph/eval.h"

namespace weir {

template <class T>
void GradientNormReference(Eval<T>& e) {
  T sum{};
  for (const Array<T>* gradient : e.in) {
    const bool squared = gradient->dtype == DType::kFloat64;
    for (const T& g : gradient->f) sum += squared ? g : g * g;
  }
  e.out[0] = Array<T>::Floats({}, std::sqrt(sum));
  e.out[0].dtype = DType::kFloat64;
}

// Kept in double: the float32 rounding happens once, at the end.
inline double ClipCoefficient(double norm, double max_norm) {
  if (!std::isfinite(norm)) return std::numeric_limits<double>::quiet_NaN();
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

template <class T>
void ClipCoefficientReference(Eval<T>& e) {
  e.out[0] = Array<T>::Floats(
      {}, T(ClipCoefficient(Real(e.floats(0).f[0]), e.attributes.Float("max_norm", 0))));
}

}  // namespace weir
