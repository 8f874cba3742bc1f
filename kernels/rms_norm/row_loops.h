#pragma once
#include <cstdint>

namespace weir {

// One row of h channels; sums are 16 interleaved chains, folded in order (see Dot).

// y = gamma * x * rstd; returns rstd.
float RmsNormRow(const float* x, const float* gamma, int64_t h, float epsilon, float* y);
// dx = rstd * gamma * dy - x * rstd^3 / h * sum(gamma * dy * x)
void RmsNormGradientRow(const float* x, const float* gamma, const float* dy, float rstd, int64_t h,
                        float* dx);
// sum[j] = fma(dy[j], x[j] * rstd, sum[j])
void AddGammaGradient(const float* x, const float* dy, float rstd, int64_t count, float* sum);

}  // namespace weir
