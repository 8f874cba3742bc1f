#include "kernels/rms_norm/row_loops.h"

#include "kernels/common/vector_loops.h"
#include "kernels/common/vector_math.h"

namespace weir {

using vector_math::kLanes;

WEIR_VECTOR_CLONES float RmsNormRow(const float* x, const float* gamma, int64_t h, float epsilon,
                                    float* y) {
  const float rstd = 1 / std::sqrt(Dot(x, x, h) / static_cast<float>(h) + epsilon);
#pragma GCC ivdep
  for (int64_t j = 0; j < h; ++j) y[j] = gamma[j] * (x[j] * rstd);
  return rstd;
}

WEIR_VECTOR_CLONES void RmsNormGradientRow(const float* x, const float* gamma, const float* dy,
                                           float rstd, int64_t h, float* dx) {
  float partial[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= h; i += kLanes) {
#pragma GCC unroll 1
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const int64_t j = i + lane;
      partial[lane] = std::fma(gamma[j] * dy[j], x[j], partial[lane]);
    }
  }
  for (int64_t lane = 0; i < h; ++i, ++lane) {
    partial[lane] = std::fma(gamma[i] * dy[i], x[i], partial[lane]);
  }
  float dot = 0;
  for (const float p : partial) dot += p;
  dot *= rstd * rstd * rstd / static_cast<float>(h);
#pragma GCC ivdep
  for (int64_t j = 0; j < h; ++j) dx[j] = rstd * gamma[j] * dy[j] - dot * x[j];
}

WEIR_VECTOR_CLONES void AddGammaGradient(const float* x, const float* dy, float rstd, int64_t count,
                                         float* sum) {
#pragma GCC ivdep
  for (int64_t j = 0; j < count; ++j) sum[j] = std::fma(dy[j], x[j] * rstd, sum[j]);
}

}  // namespace weir
