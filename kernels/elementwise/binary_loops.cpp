#include "kernels/elementwise/binary_loops.h"

#include <cmath>

#include "kernels/common/vector_math.h"

namespace weir {
namespace {

// Whole small exponents by multiplication, as the reference does; else the C library.
float PowOf(float x, float p) {
  if (p == 2) return x * x;
  if (p == 1) return x;
  if (p == 3) return x * x * x;
  if (p == -1) return 1 / x;
  return std::pow(x, p);
}

}  // namespace

// Three loops, each with both strides known to the compiler. ivdep: an operand that is y is read at
// i before y[i] is written.
#define WEIR_STRIDED_LOOP(Type, Result, Name, value)                                             \
  WEIR_VECTOR_CLONES void Name(const Type* a, int64_t a_stride, const Type* b, int64_t b_stride, \
                               int64_t count, Result* y) {                                       \
    if (a_stride == 0) {                                                                         \
      const Type u = *a;                                                                         \
      _Pragma("GCC ivdep") for (int64_t i = 0; i < count; ++i) {                                 \
        const Type v = b[i * b_stride];                                                          \
        y[i] = value;                                                                            \
      }                                                                                          \
    } else if (b_stride == 0) {                                                                  \
      const Type v = *b;                                                                         \
      _Pragma("GCC ivdep") for (int64_t i = 0; i < count; ++i) {                                 \
        const Type u = a[i];                                                                     \
        y[i] = value;                                                                            \
      }                                                                                          \
    } else {                                                                                     \
      _Pragma("GCC ivdep") for (int64_t i = 0; i < count; ++i) {                                 \
        const Type u = a[i], v = b[i];                                                           \
        y[i] = value;                                                                            \
      }                                                                                          \
    }                                                                                            \
  }
#define WEIR_BINARY_LOOP(Name, value) WEIR_STRIDED_LOOP(float, float, Name##Loop, value)
WEIR_BINARY_LOOP(Add, u + v)
WEIR_BINARY_LOOP(Sub, u - v)
WEIR_BINARY_LOOP(Mul, u* v)
WEIR_BINARY_LOOP(Div, u / v)
WEIR_BINARY_LOOP(Min, (u < v || u != u) ? u : v)
WEIR_BINARY_LOOP(Max, (u > v || u != u) ? u : v)
WEIR_BINARY_LOOP(Pow, PowOf(u, v))
#undef WEIR_BINARY_LOOP

#define WEIR_COMPARE_LOOP(Name, value)                      \
  WEIR_STRIDED_LOOP(float, uint8_t, Name##FloatLoop, value) \
  WEIR_STRIDED_LOOP(int64_t, uint8_t, Name##IntLoop, value)
WEIR_COMPARE_LOOP(Equal, u == v)
WEIR_COMPARE_LOOP(Less, u < v)
WEIR_COMPARE_LOOP(LessOrEqual, u <= v)
WEIR_COMPARE_LOOP(Greater, u > v)
WEIR_COMPARE_LOOP(GreaterOrEqual, u >= v)
#undef WEIR_COMPARE_LOOP
#undef WEIR_STRIDED_LOOP

WEIR_VECTOR_CLONES void SelectLoop(const uint8_t* condition, int64_t condition_stride, Strided a,
                                   Strided b, int64_t count, float* y) {
  if (condition_stride == 1 && a.stride == 1 && b.stride == 0) {
    const float v = *b.data;
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) y[i] = condition[i] ? a.data[i] : v;
  } else if (condition_stride == 1 && a.stride == 1) {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) y[i] = condition[i] ? a.data[i] : b.data[i];
  } else {
    for (int64_t i = 0; i < count; ++i) {
      y[i] = condition[i * condition_stride] ? a.data[i * a.stride] : b.data[i * b.stride];
    }
  }
}

WEIR_VECTOR_CLONES void ClipLoop(const float* x, int64_t count, float low, float high, float* y) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const float v = x[i] < low ? low : x[i];
    y[i] = v > high ? high : v;
  }
}

}  // namespace weir
