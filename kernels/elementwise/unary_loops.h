#pragma once
#include <cstdint>

namespace weir {

// y[i] = f(x[i]) and dx[i] = dy[i] * f'(x[i]) in float32; y may be x, dx may be x or dy. The op's
// attributes arrive as alpha and beta where it has them.
struct FunctionArguments {
  float alpha = 0, beta = 0;
};
using UnaryLoop = void (*)(const float* x, int64_t count, FunctionArguments arguments, float* y);
using SlopeLoop = void (*)(const float* x, const float* dy, int64_t count,
                           FunctionArguments arguments, float* dx);

#define WEIR_UNARY_LOOP(Name) \
  void Name##Loop(const float* x, int64_t count, FunctionArguments a, float* y);
WEIR_UNARY_LOOP(Neg)
WEIR_UNARY_LOOP(Abs)
WEIR_UNARY_LOOP(Relu)
WEIR_UNARY_LOOP(Exp)
WEIR_UNARY_LOOP(Sqrt)
WEIR_UNARY_LOOP(Reciprocal)
WEIR_UNARY_LOOP(Tanh)
WEIR_UNARY_LOOP(Sigmoid)
WEIR_UNARY_LOOP(HardSigmoid)
WEIR_UNARY_LOOP(LeakyRelu)
WEIR_UNARY_LOOP(Swish)
WEIR_UNARY_LOOP(GeluTanh)
#undef WEIR_UNARY_LOOP

#define WEIR_SLOPE_LOOP(Name)                                                               \
  void Name##SlopeLoop(const float* x, const float* dy, int64_t count, FunctionArguments a, \
                       float* dx);
WEIR_SLOPE_LOOP(Abs)
WEIR_SLOPE_LOOP(Relu)
WEIR_SLOPE_LOOP(Log)
WEIR_SLOPE_LOOP(Sqrt)
WEIR_SLOPE_LOOP(Reciprocal)
WEIR_SLOPE_LOOP(Tanh)
WEIR_SLOPE_LOOP(Sigmoid)
WEIR_SLOPE_LOOP(Softplus)
WEIR_SLOPE_LOOP(LeakyRelu)
WEIR_SLOPE_LOOP(Swish)
WEIR_SLOPE_LOOP(GeluTanh)
#undef WEIR_SLOPE_LOOP

}  // namespace weir
