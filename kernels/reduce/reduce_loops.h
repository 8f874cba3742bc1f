#pragma once
#include <cstdint>

namespace weir {

// Blocks of 4096 elements, each in 16 interleaved float32 partial sums, folded in order in float64.
float SumOf(const float* x, int64_t count);
float SumSquaresOf(const float* x, int64_t count);
// NaN wins. count > 0.
float GreatestOf(const float* x, int64_t count);
float LeastOf(const float* x, int64_t count);
float ProductOf(const float* x, int64_t count);

// y[i] = f(y[i], x[i]), element by element.
void AddToDouble(const float* x, int64_t count, double* y);
void AddSquaresTo(const float* x, int64_t count, float* y);
void GreatestTo(const float* x, int64_t count, float* y);
void LeastTo(const float* x, int64_t count, float* y);
void MultiplyTo(const float* x, int64_t count, float* y);
// y[i] += e^(x[i] - top[i])
void AddExpTo(const float* x, const float* top, int64_t count, float* y);

}  // namespace weir
