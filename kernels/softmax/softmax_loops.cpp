#include "kernels/softmax/softmax_loops.h"

#include "kernels/common/vector_math.h"

namespace weir {

// ivdep: an operand that is the output is read at i before it is written there.
WEIR_VECTOR_CLONES void ShiftTwice(const float* x, int64_t count, float top, float log_sum,
                                   float* y) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) y[i] = (x[i] - top) - log_sum;
}

WEIR_VECTOR_CLONES void SoftmaxSlope(const float* y, const float* dy, int64_t count, float dot,
                                     float* dx) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) dx[i] = y[i] * (dy[i] - dot);
}

WEIR_VECTOR_CLONES void LogSoftmaxSlope(const float* y, const float* dy, int64_t count, float sum,
                                        float* dx) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) dx[i] = dy[i] - vector_math::Exp(y[i]) * sum;
}

}  // namespace weir
