#pragma once
#include <cstdint>

namespace weir {

// y[i] = (x[i] - top) - log_sum; y may be x
void ShiftTwice(const float* x, int64_t count, float top, float log_sum, float* y);
// dx[i] = y[i] * (dy[i] - dot); dx may be y or dy
void SoftmaxSlope(const float* y, const float* dy, int64_t count, float dot, float* dx);
// dx[i] = dy[i] - e^y[i] * sum; dx may be y or dy
void LogSoftmaxSlope(const float* y, const float* dy, int64_t count, float sum, float* dx);

}  // namespace weir
