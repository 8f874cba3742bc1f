#pragma once
#include <cstdint>

namespace weir {

// Sum of (x[i] - mean)^2 over 16 interleaved partial sums, folded in order.
float CenteredSquares(const float* x, int64_t count, float mean);
// y[i] = (x[i] - mean) * r * gamma[i] + beta[i]; beta may be null; y may be x
void Normalize(const float* x, int64_t count, float mean, float r, const float* gamma,
               const float* beta, float* y);
// With h = (x[i] - mean) * r and g = gamma[i] * dy[i]: the sums of g and of g * h.
struct NormSums {
  float g, gh;
};
NormSums SumNormGradient(const float* x, const float* dy, const float* gamma, int64_t count,
                         float mean, float r);
// dx[i] = r * (g - means.g - h * means.gh)
void NormSlope(const float* x, const float* dy, const float* gamma, int64_t count, float mean,
               float r, NormSums means, float* dx);
// sum[i] += dy[i] * (x[i] - mean) * r
void AddNormalized(const float* x, const float* dy, int64_t count, float mean, float r, float* sum);

}  // namespace weir
