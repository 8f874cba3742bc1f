#include "kernels/common/vector_loops.h"

#include <limits>

#include "kernels/common/vector_math.h"

namespace weir {
namespace {

using vector_math::Exp;
using vector_math::kLanes;

float Fold(const float* partial) {
  float sum = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) sum += partial[lane];
  return sum;
}

}  // namespace

WEIR_VECTOR_CLONES float MaxOf(const float* x, int64_t count) {
  float partial[kLanes];
  for (float& p : partial) p = -std::numeric_limits<float>::infinity();
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
#pragma GCC unroll 1
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      partial[lane] = x[i + lane] > partial[lane] ? x[i + lane] : partial[lane];
    }
  }
  for (; i < count; ++i) partial[0] = x[i] > partial[0] ? x[i] : partial[0];
  float top = partial[0];
  for (const float p : partial) top = p > top ? p : top;
  return top;
}

WEIR_VECTOR_CLONES float SumExp(const float* x, int64_t count, float shift) {
  float partial[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
#pragma GCC unroll 1
    for (int64_t lane = 0; lane < kLanes; ++lane) partial[lane] += Exp(x[i + lane] - shift);
  }
  for (int64_t lane = 0; i < count; ++i, ++lane) partial[lane] += Exp(x[i] - shift);
  return Fold(partial);
}

WEIR_VECTOR_CLONES float ExpInPlace(float* x, int64_t count, float shift) {
  float partial[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
#pragma GCC unroll 1
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float e = Exp(x[i + lane] - shift);
      x[i + lane] = e;
      partial[lane] += e;
    }
  }
  for (int64_t lane = 0; i < count; ++i, ++lane) {
    x[i] = Exp(x[i] - shift);
    partial[lane] += x[i];
  }
  return Fold(partial);
}

WEIR_VECTOR_CLONES void ScaledExp(const float* x, int64_t count, float shift, float factor,
                                  float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = Exp(x[i] - shift) * factor;
}

WEIR_VECTOR_CLONES float Dot(const float* a, const float* b, int64_t count) {
  float partial[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
#pragma GCC unroll 1
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      partial[lane] = std::fma(a[i + lane], b[i + lane], partial[lane]);
    }
  }
  for (int64_t lane = 0; i < count; ++i, ++lane)
    partial[lane] = std::fma(a[i], b[i], partial[lane]);
  return Fold(partial);
}

WEIR_VECTOR_CLONES void AddScaled(const float* x, int64_t count, float factor, float* y) {
  for (int64_t i = 0; i < count; ++i) y[i] = std::fma(factor, x[i], y[i]);
}

WEIR_VECTOR_CLONES void CopyScaled(const float* x, int64_t count, float factor, float* y) {
  for (int64_t i = 0; i < count; ++i) y[i] = factor * x[i];
}

WEIR_VECTOR_CLONES void AddTo(const float* x, int64_t count, float* y) {
  for (int64_t i = 0; i < count; ++i) y[i] += x[i];
}

}  // namespace weir
