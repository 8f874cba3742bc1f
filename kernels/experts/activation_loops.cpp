#include "kernels/experts/activation_loops.h"

#include "kernels/common/vector_math.h"

namespace weir {
namespace {

struct ValueAndSlope {
  float value, slope;
};

// act(g) and its derivative, as Activate but in vector code where there is a vector function.
template <GateActivation kKind>
[[gnu::always_inline]] inline ValueAndSlope Gate(float alpha, float g) {
  if constexpr (kKind == GateActivation::kSwiglu) {
    const float s = vector_math::Sigmoid(alpha * g);
    return {g * s, s * std::fma(alpha * g, 1 - s, 1.0f)};
  } else if constexpr (kKind == GateActivation::kGeluTanh) {
    constexpr float kRoot = 0.7978845608f, kCubic = 0.044715f;  // sqrt(2 / pi)
    const float t = vector_math::Tanh(kRoot * g * std::fma(kCubic * g, g, 1.0f));
    const float slope = kRoot * std::fma(3 * kCubic * g, g, 1.0f), half = 0.5f * (1 + t);
    return {g * half, std::fma(0.5f * g * (1 - t * t), slope, half)};
  } else if constexpr (kKind == GateActivation::kRelu) {
    return {g > 0 ? g : 0, g > 0 ? 1.0f : 0.0f};
  } else {
    const float phi = 0.5f * (1 + std::erf(g * 0.7071067812f));
    return {g * phi, std::fma(g * 0.3989422804f, vector_math::Exp(-0.5f * g * g), phi)};
  }
}

[[gnu::always_inline]] inline float ClampUp(float u, float limit) {
  u = u > limit ? limit : u;
  return u < -limit ? -limit : u;
}

template <GateActivation kKind>
[[gnu::always_inline]] inline void ForwardRow(const ExpertActivation& act, const float* gate_up,
                                              int64_t width, float* a) {
  const float alpha = act.alpha, beta = act.beta, limit = act.limit;
#pragma GCC ivdep
  for (int64_t j = 0; j < width; ++j) {
    const float g = gate_up[j] > limit ? limit : gate_up[j];
    a[j] = Gate<kKind>(alpha, g).value * (ClampUp(gate_up[width + j], limit) + beta);
  }
}

template <GateActivation kKind>
[[gnu::always_inline]] inline void BackwardRow(const ExpertActivation& act, float* gate_up,
                                               int64_t width, float weight, const float* da,
                                               float* a) {
  const float alpha = act.alpha, beta = act.beta, limit = act.limit;
#pragma GCC ivdep
  for (int64_t j = 0; j < width; ++j) {
    const float g_in = gate_up[j], u_in = gate_up[width + j];
    const float g = g_in > limit ? limit : g_in, u = ClampUp(u_in, limit) + beta;
    const ValueAndSlope gate = Gate<kKind>(alpha, g);
    const float d = weight * da[j], dg = d * u * gate.slope, du = d * gate.value;
    a[j] = gate.value * u;
    gate_up[j] = g_in > limit ? 0 : dg;
    gate_up[width + j] = std::fabs(u_in) > limit ? 0 : du;
  }
}

}  // namespace

WEIR_VECTOR_CLONES void GatedForwardRow(const ExpertActivation& act, const float* gate_up,
                                        int64_t width, float* a) {
  switch (act.kind) {
    case GateActivation::kSwiglu:
      return ForwardRow<GateActivation::kSwiglu>(act, gate_up, width, a);
    case GateActivation::kGelu:
      return ForwardRow<GateActivation::kGelu>(act, gate_up, width, a);
    case GateActivation::kGeluTanh:
      return ForwardRow<GateActivation::kGeluTanh>(act, gate_up, width, a);
    case GateActivation::kRelu:
      return ForwardRow<GateActivation::kRelu>(act, gate_up, width, a);
  }
}

WEIR_VECTOR_CLONES void GatedBackwardRow(const ExpertActivation& act, float* gate_up, int64_t width,
                                         float weight, const float* da, float* a) {
  switch (act.kind) {
    case GateActivation::kSwiglu:
      return BackwardRow<GateActivation::kSwiglu>(act, gate_up, width, weight, da, a);
    case GateActivation::kGelu:
      return BackwardRow<GateActivation::kGelu>(act, gate_up, width, weight, da, a);
    case GateActivation::kGeluTanh:
      return BackwardRow<GateActivation::kGeluTanh>(act, gate_up, width, weight, da, a);
    case GateActivation::kRelu:
      return BackwardRow<GateActivation::kRelu>(act, gate_up, width, weight, da, a);
  }
}

}  // namespace weir
