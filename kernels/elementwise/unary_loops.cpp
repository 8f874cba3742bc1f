#include "kernels/elementwise/unary_loops.h"

#include <cmath>

#include "kernels/common/vector_math.h"

namespace weir {
namespace {

using vector_math::Exp;
using vector_math::Sigmoid;
using vector_math::Tanh;

constexpr float kRoot2OverPi = 0.7978845608028654f, kCubic = 0.044715f;

inline float HardSigmoidOf(float x, FunctionArguments a) {
  const float y = a.alpha * x + a.beta, low = y < 0 ? 0.0f : y;
  return low > 1 ? 1.0f : low;
}
inline float TanhSlope(float x) {
  const float t = Tanh(x);
  return (1 - t) * (1 + t);
}
inline float SwishSlope(float x, float alpha) {
  const float u = alpha * x, s = Sigmoid(u);
  return std::fma(u * s, Sigmoid(-u), s);
}
// 1 + tanh(u) = 2 sigmoid(2u)
inline float TwiceInner(float x) { return 2 * kRoot2OverPi * (x + kCubic * x * x * x); }
inline float GeluTanhSlope(float x) {
  const float u = TwiceInner(x), s = Sigmoid(u);
  return std::fma(2 * kRoot2OverPi * x * (1 + 3 * kCubic * x * x) * s, Sigmoid(-u), s);
}

}  // namespace

// y may be x: element i is read before it is written and never again, which ivdep states.
#define WEIR_UNARY_LOOP(Name, value)                                                   \
  WEIR_VECTOR_CLONES void Name##Loop(const float* x, int64_t count,                    \
                                     [[maybe_unused]] FunctionArguments a, float* y) { \
    _Pragma("GCC ivdep") for (int64_t i = 0; i < count; ++i) {                         \
      const float v = x[i];                                                            \
      y[i] = value;                                                                    \
    }                                                                                  \
  }
WEIR_UNARY_LOOP(Neg, -v)
WEIR_UNARY_LOOP(Abs, std::fabs(v))
WEIR_UNARY_LOOP(Relu, v < 0 ? 0.0f : v)
WEIR_UNARY_LOOP(Exp, Exp(v))
WEIR_UNARY_LOOP(Sqrt, std::sqrt(v))
WEIR_UNARY_LOOP(Reciprocal, 1.0f / v)
WEIR_UNARY_LOOP(Tanh, Tanh(v))
WEIR_UNARY_LOOP(Sigmoid, Sigmoid(v))
WEIR_UNARY_LOOP(HardSigmoid, HardSigmoidOf(v, a))
WEIR_UNARY_LOOP(LeakyRelu, v < 0 ? a.alpha * v : v)
WEIR_UNARY_LOOP(Swish, v* Sigmoid(a.alpha* v))
WEIR_UNARY_LOOP(GeluTanh, v* Sigmoid(TwiceInner(v)))
#undef WEIR_UNARY_LOOP

#define WEIR_SLOPE_LOOP(Name, slope)                                                         \
  WEIR_VECTOR_CLONES void Name##SlopeLoop(const float* x, const float* dy, int64_t count,    \
                                          [[maybe_unused]] FunctionArguments a, float* dx) { \
    _Pragma("GCC ivdep") for (int64_t i = 0; i < count; ++i) {                               \
      const float v = x[i];                                                                  \
      dx[i] = dy[i] * (slope);                                                               \
    }                                                                                        \
  }
WEIR_SLOPE_LOOP(Abs, v > 0 ? 1.0f : v < 0 ? -1.0f : 0.0f)
WEIR_SLOPE_LOOP(Relu, v > 0 ? 1.0f : 0.0f)
WEIR_SLOPE_LOOP(Log, 1.0f / v)
WEIR_SLOPE_LOOP(Sqrt, 0.5f / std::sqrt(v))
WEIR_SLOPE_LOOP(Reciprocal, -1.0f / (v * v))
WEIR_SLOPE_LOOP(Tanh, TanhSlope(v))
WEIR_SLOPE_LOOP(Sigmoid, Sigmoid(v) * Sigmoid(-v))
WEIR_SLOPE_LOOP(Softplus, Sigmoid(v))
WEIR_SLOPE_LOOP(LeakyRelu, v < 0 ? a.alpha : 1.0f)
WEIR_SLOPE_LOOP(Swish, SwishSlope(v, a.alpha))
WEIR_SLOPE_LOOP(GeluTanh, GeluTanhSlope(v))
#undef WEIR_SLOPE_LOOP

}  // namespace weir
