// Scalar float32 functions of one argument. expf and its like are the CUDA library's, within 2 ulp.
#pragma once
#include "kernels/elementwise/cuda.h"

namespace weir::cuda {

// One exponential of a number that is never positive.
__device__ inline float SigmoidOf(float x) {
  const float e = expf(-fabsf(x));
  return (x >= 0 ? 1.0f : e) / (1.0f + e);
}
inline constexpr float kRoot2OverPi = 0.7978845608028654f, kCubic = 0.044715f,
                       kRootHalf = 0.7071067811865476f;
inline constexpr float kInvRootPi = 0.5641895835477563f, kInvRoot2Pi = 0.3989422804014327f;
// 1 + tanh(u) = 2 sigmoid(2u)
__device__ inline float TwiceInner(float x) { return 2 * kRoot2OverPi * (x + kCubic * x * x * x); }

#define WEIR_FUNCTION(Name, value)                                                                   \
  struct Name##Function {                                                                            \
    __device__ static float Of(float x, [[maybe_unused]] float alpha, [[maybe_unused]] float beta) { \
      return value;                                                                                  \
    }                                                                                                \
  };
WEIR_FUNCTION(Neg, -x)
WEIR_FUNCTION(Abs, fabsf(x))
WEIR_FUNCTION(Sign, x != x ? x : static_cast<float>((x > 0) - (x < 0)))
WEIR_FUNCTION(Relu, x < 0 ? 0.0f : x)
WEIR_FUNCTION(Exp, expf(x))
WEIR_FUNCTION(Log, logf(x))
WEIR_FUNCTION(Sqrt, sqrtf(x))
WEIR_FUNCTION(Reciprocal, 1.0f / x)
WEIR_FUNCTION(Floor, floorf(x))
WEIR_FUNCTION(Ceil, ceilf(x))
WEIR_FUNCTION(Round, rintf(x))
WEIR_FUNCTION(Sin, sinf(x))
WEIR_FUNCTION(Cos, cosf(x))
WEIR_FUNCTION(Tanh, tanhf(x))
WEIR_FUNCTION(Sigmoid, SigmoidOf(x))
WEIR_FUNCTION(Erf, erff(x))
WEIR_FUNCTION(Softplus, x > 0 ? x + log1pf(expf(-x)) : log1pf(expf(x)))
WEIR_FUNCTION(HardSigmoid, fminf(fmaxf(alpha* x + beta, 0.0f), 1.0f))
WEIR_FUNCTION(LeakyRelu, x < 0 ? alpha * x : x)
WEIR_FUNCTION(Swish, x* SigmoidOf(alpha* x))
WEIR_FUNCTION(Gelu, x*(0.5f * erfcf(-x * kRootHalf)))
WEIR_FUNCTION(GeluTanh, x* SigmoidOf(TwiceInner(x)))
#undef WEIR_FUNCTION

__device__ inline float SwishSlopeOf(float x, float alpha) {
  const float u = alpha * x, s = SigmoidOf(u);
  return fmaf(u * s, SigmoidOf(-u), s);
}
__device__ inline float GeluTanhSlopeOf(float x) {
  const float u = TwiceInner(x), s = SigmoidOf(u);
  return fmaf(2 * kRoot2OverPi * x * (1 + 3 * kCubic * x * x) * s, SigmoidOf(-u), s);
}
__device__ inline float TanhSlopeOf(float x) {
  const float t = tanhf(x);
  return (1 - t) * (1 + t);
}
__device__ inline float HardSigmoidSlopeOf(float x, float alpha, float beta) {
  const float y = alpha * x + beta;
  return y > 0 && y < 1 ? alpha : 0.0f;
}

#define WEIR_SLOPE(Name, value)                                                                      \
  struct Name##Slope {                                                                               \
    __device__ static float Of(float x, [[maybe_unused]] float alpha, [[maybe_unused]] float beta) { \
      return value;                                                                                  \
    }                                                                                                \
  };
WEIR_SLOPE(Abs, static_cast<float>((x > 0) - (x < 0)))
WEIR_SLOPE(Relu, x > 0 ? 1.0f : 0.0f)
WEIR_SLOPE(Log, 1.0f / x)
WEIR_SLOPE(Sqrt, 0.5f / sqrtf(x))
WEIR_SLOPE(Reciprocal, -1.0f / (x * x))
WEIR_SLOPE(Sin, cosf(x))
WEIR_SLOPE(Cos, -sinf(x))
WEIR_SLOPE(Tanh, TanhSlopeOf(x))
WEIR_SLOPE(Sigmoid, SigmoidOf(x) * SigmoidOf(-x))
WEIR_SLOPE(Erf, 2 * kInvRootPi * expf(-x * x))
WEIR_SLOPE(Softplus, SigmoidOf(x))
WEIR_SLOPE(HardSigmoid, HardSigmoidSlopeOf(x, alpha, beta))
WEIR_SLOPE(LeakyRelu, x < 0 ? alpha : 1.0f)
WEIR_SLOPE(Swish, SwishSlopeOf(x, alpha))
WEIR_SLOPE(Gelu, fmaf(x* kInvRoot2Pi, expf(-0.5f * x * x), 0.5f * erfcf(-x * kRootHalf)))
WEIR_SLOPE(GeluTanh, GeluTanhSlopeOf(x))
#undef WEIR_SLOPE

}  // namespace weir::cuda
