#include "kernels/rotary/row_loops.h"

#include "kernels/common/vector_math.h"

namespace weir {
namespace {

// Strides known to the compiler make the half layout a vector loop.
template <int64_t kFrom, int64_t kTo>
inline __attribute__((always_inline)) void RotatePairs(const RotaryRow& r, const float* x,
                                                       const float* cos, const float* sin,
                                                       float* y) {
  const float* x2 = x + (kFrom == 2 ? 1 : r.half);
  const float sign = r.sign;
  float* y2 = y + (kTo == 2 ? 1 : r.half);
  const int64_t half = r.half;
#pragma GCC ivdep
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i * kFrom], b = x2[i * kFrom], s = sign * sin[i];
    y[i * kTo] = a * cos[i] - b * s;
    y2[i * kTo] = b * cos[i] + a * s;
  }
}

}  // namespace

WEIR_VECTOR_CLONES void RotateRow(const RotaryRow& r, const float* x, const float* cos,
                                  const float* sin, float* y) {
  if (r.from_interleaved) {
    r.to_interleaved ? RotatePairs<2, 2>(r, x, cos, sin, y) : RotatePairs<2, 1>(r, x, cos, sin, y);
  } else {
    r.to_interleaved ? RotatePairs<1, 2>(r, x, cos, sin, y) : RotatePairs<1, 1>(r, x, cos, sin, y);
  }
  for (int64_t i = 2 * r.half; i < r.width; ++i) y[i] = x[i];
}

}  // namespace weir
