#pragma once
#include <cmath>
#include <limits>

#include "graph/eval.h"
#include "kernels/experts/gate.h"

namespace weir {

// a = act(g) * (u + beta) with g = min(g, limit), u = clamp(u, -limit, limit).
struct ExpertActivation {
  GateActivation kind;
  float alpha, beta, limit;

  // Throws InvalidModel for an unknown name.
  explicit ExpertActivation(const Attributes& attributes);
};

namespace activation {

inline float Erf(float x) { return std::erf(x); }
inline double Erf(double x) { return std::erf(x); }
// First order in the imaginary part: what the complex step needs.
inline std::complex<double> Erf(const std::complex<double>& z) {
  const double x = z.real();
  return {std::erf(x), z.imag() * 2 / std::sqrt(M_PI) * std::exp(-x * x)};
}

}  // namespace activation

// act(g) and its derivative.
template <class T>
std::pair<T, T> Activate(const ExpertActivation& act, const T& g) {
  switch (act.kind) {
    case GateActivation::kGelu: {
      const T phi = T(0.5) * (T(1) + activation::Erf(g * T(M_SQRT1_2)));
      return {g * phi, phi + g * std::exp(T(-0.5) * g * g) * T(0.3989422804014327)};
    }
    case GateActivation::kGeluTanh: {
      const T t = std::tanh(T(0.7978845608028654) * (g + T(0.044715) * g * g * g));
      const T slope = T(0.7978845608028654) * (T(1) + T(3 * 0.044715) * g * g);
      return {T(0.5) * g * (T(1) + t), T(0.5) * (T(1) + t) + T(0.5) * g * (T(1) - t * t) * slope};
    }
    case GateActivation::kRelu:
      return Real(g) > 0 ? std::pair{g, T(1)} : std::pair{T(0), T(0)};
    default: {
      const T s = T(1) / (T(1) + std::exp(-T(act.alpha) * g));
      return {g * s, s * (T(1) + T(act.alpha) * g * (T(1) - s))};
    }
  }
}

template <class T>
T GatedForward(const ExpertActivation& act, T g, T u) {
  const double limit = act.limit;
  if (Real(g) > limit) g = T(act.limit);
  if (std::abs(Real(u)) > limit) u = T(Real(u) > 0 ? act.limit : -act.limit);
  return Activate(act, g).first * (u + T(act.beta));
}

// The clamps pass the gradient inside the limit (the limit included) and stop it outside.
template <class T>
std::pair<T, T> GatedBackward(const ExpertActivation& act, T g, T u, const T& da) {
  const double limit = act.limit;
  const bool stop_g = Real(g) > limit, stop_u = std::abs(Real(u)) > limit;
  if (stop_g) g = T(act.limit);
  if (stop_u) u = T(Real(u) > 0 ? act.limit : -act.limit);
  const auto [value, slope] = Activate(act, g);
  return {stop_g ? T(0) : da * (u + T(act.beta)) * slope, stop_u ? T(0) : da * value};
}

}  // namespace weir
