#include "kernels/layer_norm/norm_loops.h"

#include "kernels/common/vector_math.h"

namespace weir {
namespace {

using vector_math::kLanes;

float Fold(const float* partial) {
  float sum = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) sum += partial[lane];
  return sum;
}

}  // namespace

WEIR_VECTOR_CLONES float CenteredSquares(const float* x, int64_t count, float mean) {
  float partial[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
#pragma GCC unroll 1
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float d = x[i + lane] - mean;
      partial[lane] = std::fma(d, d, partial[lane]);
    }
  }
  for (int64_t lane = 0; i < count; ++i, ++lane)
    partial[lane] = std::fma(x[i] - mean, x[i] - mean, partial[lane]);
  return Fold(partial);
}

WEIR_VECTOR_CLONES void Normalize(const float* x, int64_t count, float mean, float r,
                                  const float* gamma, const float* beta, float* y) {
  if (beta == nullptr) {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) y[i] = (x[i] - mean) * r * gamma[i];
    return;
  }
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) y[i] = std::fma((x[i] - mean) * r, gamma[i], beta[i]);
}

WEIR_VECTOR_CLONES NormSums SumNormGradient(const float* x, const float* dy, const float* gamma,
                                            int64_t count, float mean, float r) {
  float g[kLanes] = {}, gh[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
#pragma GCC unroll 1
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float v = gamma[i + lane] * dy[i + lane];
      g[lane] += v;
      gh[lane] = std::fma(v, (x[i + lane] - mean) * r, gh[lane]);
    }
  }
  for (int64_t lane = 0; i < count; ++i, ++lane) {
    const float v = gamma[i] * dy[i];
    g[lane] += v;
    gh[lane] = std::fma(v, (x[i] - mean) * r, gh[lane]);
  }
  return {Fold(g), Fold(gh)};
}

WEIR_VECTOR_CLONES void NormSlope(const float* x, const float* dy, const float* gamma,
                                  int64_t count, float mean, float r, NormSums means, float* dx) {
  const NormSums m = means;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    dx[i] = r * (gamma[i] * dy[i] - m.g - (x[i] - mean) * r * m.gh);
  }
}

WEIR_VECTOR_CLONES void AddNormalized(const float* x, const float* dy, int64_t count, float mean,
                                      float r, float* sum) {
  for (int64_t i = 0; i < count; ++i) sum[i] = std::fma(dy[i], (x[i] - mean) * r, sum[i]);
}

}  // namespace weir
