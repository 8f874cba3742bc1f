#include "kernels/reduce/reduce_loops.h"

#include <algorithm>

#include "kernels/common/vector_math.h"

namespace weir {
namespace {

using vector_math::kLanes;

constexpr int64_t kBlock = 4096;

inline float Greatest(float a, float b) { return a > b || a != a ? a : b; }
inline float Least(float a, float b) { return a < b || a != a ? a : b; }

}  // namespace

// Element i goes to lane i % 16, in order; then the lanes fold in order. `step` combines the lane p
// with the element v.
#define WEIR_LANES(Name, start, step, fold)                                   \
  WEIR_VECTOR_CLONES static float Name(const float* x, int64_t count) {       \
    float partial[kLanes];                                                    \
    for (float& p : partial) p = start;                                       \
    int64_t i = 0;                                                            \
    for (; i + kLanes <= count; i += kLanes) {                                \
      _Pragma("GCC unroll 1") for (int64_t lane = 0; lane < kLanes; ++lane) { \
        const float v = x[i + lane], p = partial[lane];                       \
        partial[lane] = step;                                                 \
      }                                                                       \
    }                                                                         \
    for (int64_t lane = 0; i < count; ++i, ++lane) {                          \
      const float v = x[i], p = partial[lane];                                \
      partial[lane] = step;                                                   \
    }                                                                         \
    float result = partial[0];                                                \
    for (int64_t lane = 1; lane < kLanes; ++lane) {                           \
      const float p = result, v = partial[lane];                              \
      result = fold;                                                          \
    }                                                                         \
    return result;                                                            \
  }
WEIR_LANES(SumLanes, 0.0f, p + v, p + v)
WEIR_LANES(SquareLanes, 0.0f, std::fma(v, v, p), p + v)
WEIR_LANES(GreatestLanes, x[0], Greatest(p, v), Greatest(p, v))
WEIR_LANES(LeastLanes, x[0], Least(p, v), Least(p, v))
WEIR_LANES(ProductLanes, 1.0f, p* v, p* v)
#undef WEIR_LANES

static float InBlocks(float (*lanes)(const float*, int64_t), const float* x, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; i += kBlock) sum += lanes(x + i, std::min(kBlock, count - i));
  return static_cast<float>(sum);
}

float SumOf(const float* x, int64_t count) { return InBlocks(SumLanes, x, count); }
float SumSquaresOf(const float* x, int64_t count) { return InBlocks(SquareLanes, x, count); }
float GreatestOf(const float* x, int64_t count) { return GreatestLanes(x, count); }
float LeastOf(const float* x, int64_t count) { return LeastLanes(x, count); }
float ProductOf(const float* x, int64_t count) { return ProductLanes(x, count); }

WEIR_VECTOR_CLONES void AddToDouble(const float* x, int64_t count, double* y) {
  for (int64_t i = 0; i < count; ++i) y[i] += static_cast<double>(x[i]);
}
WEIR_VECTOR_CLONES void AddSquaresTo(const float* x, int64_t count, float* y) {
  for (int64_t i = 0; i < count; ++i) y[i] = std::fma(x[i], x[i], y[i]);
}
WEIR_VECTOR_CLONES void GreatestTo(const float* x, int64_t count, float* y) {
  for (int64_t i = 0; i < count; ++i) y[i] = Greatest(y[i], x[i]);
}
WEIR_VECTOR_CLONES void LeastTo(const float* x, int64_t count, float* y) {
  for (int64_t i = 0; i < count; ++i) y[i] = Least(y[i], x[i]);
}
WEIR_VECTOR_CLONES void MultiplyTo(const float* x, int64_t count, float* y) {
  for (int64_t i = 0; i < count; ++i) y[i] *= x[i];
}
WEIR_VECTOR_CLONES void AddExpTo(const float* x, const float* top, int64_t count, float* y) {
  for (int64_t i = 0; i < count; ++i) y[i] += vector_math::Exp(x[i] - top[i]);
}

}  // namespace weir
