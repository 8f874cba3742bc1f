#pragma once
#include <cstdint>

namespace weir {

// y[i] = f(a[i * a_stride], b[i * b_stride]); strides are 0 or 1; y may be an operand of stride 1.
using BinaryLoop = void (*)(const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                            int64_t count, float* y);
#define WEIR_BINARY_LOOP(Name)                                                        \
  void Name##Loop(const float* a, int64_t a_stride, const float* b, int64_t b_stride, \
                  int64_t count, float* y);
WEIR_BINARY_LOOP(Add)
WEIR_BINARY_LOOP(Sub)
WEIR_BINARY_LOOP(Mul)
WEIR_BINARY_LOOP(Div)
WEIR_BINARY_LOOP(Min)
WEIR_BINARY_LOOP(Max)
WEIR_BINARY_LOOP(Pow)
#undef WEIR_BINARY_LOOP

// y[i] = condition ? a : b, strides as above.
struct Strided {
  const float* data;
  int64_t stride;
};
void SelectLoop(const uint8_t* condition, int64_t condition_stride, Strided a, Strided b,
                int64_t count, float* y);
// y[i] = min(max(x[i], low), high); NaN stays
void ClipLoop(const float* x, int64_t count, float low, float high, float* y);

// y[i] = a ? b as 0 or 1, strides as above.
using FloatCompareLoop = void (*)(const float* a, int64_t a_stride, const float* b,
                                  int64_t b_stride, int64_t count, uint8_t* y);
using IntCompareLoop = void (*)(const int64_t* a, int64_t a_stride, const int64_t* b,
                                int64_t b_stride, int64_t count, uint8_t* y);
#define WEIR_COMPARE_LOOP(Name)                                                              \
  void Name##FloatLoop(const float* a, int64_t a_stride, const float* b, int64_t b_stride,   \
                       int64_t count, uint8_t* y);                                           \
  void Name##IntLoop(const int64_t* a, int64_t a_stride, const int64_t* b, int64_t b_stride, \
                     int64_t count, uint8_t* y);
WEIR_COMPARE_LOOP(Equal)
WEIR_COMPARE_LOOP(Less)
WEIR_COMPARE_LOOP(LessOrEqual)
WEIR_COMPARE_LOOP(Greater)
WEIR_COMPARE_LOOP(GreaterOrEqual)
#undef WEIR_COMPARE_LOOP

}  // namespace weir
