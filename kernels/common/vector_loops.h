#pragma once
#include <cstdint>

namespace weir {

// Largest element, -infinity when there is none; NaN elements may be passed over.
float MaxOf(const float* x, int64_t count);
// Sum of exp(x[i] - shift) over 16 interleaved partial sums, folded in order.
float SumExp(const float* x, int64_t count, float shift);
// x[i] = exp(x[i] - shift); returns their sum as SumExp defines it.
float ExpInPlace(float* x, int64_t count, float shift);
// out[i] = exp(x[i] - shift) * factor; out may be x.
void ScaledExp(const float* x, int64_t count, float shift, float factor, float* out);
// sum of a[i] * b[i] over 16 interleaved chains of fused multiply-adds, folded in order
float Dot(const float* a, const float* b, int64_t count);
// y[i] = fma(factor, x[i], y[i])
void AddScaled(const float* x, int64_t count, float factor, float* y);
// y[i] = factor * x[i]; y may be x
void CopyScaled(const float* x, int64_t count, float factor, float* y);
// y[i] += x[i]
void AddTo(const float* x, int64_t count, float* y);

}  // namespace weir
