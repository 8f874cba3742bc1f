// A gated activation in registers (kernels/experts/activation.h).
#pragma once
#include "kernels/device/numbers.cuh"
#include "kernels/experts/cuda.h"

namespace weir::cuda {

// act(g) and its derivative.
__device__ inline void Activate(const Gate& gate, float g, float& value, float& slope) {
  switch (gate.kind) {
    case GateActivation::kGelu: {
      const float phi = 0.5f * (1.0f + erff(g * 0.7071067811865476f));
      value = g * phi;
      slope = fmaf(g * expf(-0.5f * g * g), 0.3989422804014327f, phi);
      return;
    }
    case GateActivation::kGeluTanh: {
      const float t = tanhf(0.7978845608028654f * fmaf(0.044715f * g * g, g, g));
      const float inner = 0.7978845608028654f * fmaf(3 * 0.044715f * g, g, 1.0f);
      value = 0.5f * g * (1.0f + t);
      slope = 0.5f * (1.0f + t) + 0.5f * g * (1.0f - t * t) * inner;
      return;
    }
    case GateActivation::kRelu:
      value = g > 0 ? g : 0.0f;
      slope = g > 0 ? 1.0f : 0.0f;
      return;
    default: {
      const float s = 1.0f / (1.0f + expf(-gate.alpha * g));
      value = g * s;
      slope = s * (1.0f + gate.alpha * g * (1.0f - s));
    }
  }
}

// The swiglu case with the GPU's own exponential and quotient: some 2^-20 off, which bfloat16 does
// not see.
__device__ inline void ActivateSwiglu(float alpha, float g, float& value, float& slope) {
  const float scaled = alpha * g;
  float power, s;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(scaled * -1.4426950408889634f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.0f + power));
  value = g * s;
  slope = s * fmaf(scaled, 1.0f - s, 1.0f);
}

// A pre-activation pair with its biases, clamped; what was clamped passes no gradient.
struct Pair {
  float g, u;
  bool stop_g, stop_u;

  __device__ Pair(float plain_g, float plain_u)
      : g(plain_g), u(plain_u), stop_g(false), stop_u(false) {}
  __device__ Pair(const Gate& gate, float raw_g, float raw_u) {
    stop_g = raw_g > gate.limit;
    stop_u = fabsf(raw_u) > gate.limit;
    g = stop_g ? gate.limit : raw_g;
    u = stop_u ? copysignf(gate.limit, raw_u) : raw_u;
  }
};

__device__ inline int64_t RouteAt(const int64_t* routes, int64_t row) {
  return routes == nullptr ? row : routes[row];
}
__device__ inline float BiasAt(const float* bias, int64_t at) {
  return bias == nullptr ? 0.0f : bias[at];
}

}  // namespace weir::cuda
