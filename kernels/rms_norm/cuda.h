#pragma once
#include <cstdint>

#include "graph/dtype.h"

struct CUstream_st;

namespace weir::cuda {

// y[n,h] = gamma * x * rstd; x, y activations of one type; rstd may be null.
void RmsNorm(DType dtype, const void* x, const float* gamma, int64_t rows, int64_t h, float epsilon, void* y,
             float* rstd, CUstream_st* stream);
// dx = rstd * gamma * dy - x * rstd^3 / h * sum(gamma * dy * x)
void RmsNormGradient(DType dtype, const void* x, const float* gamma, const float* rstd, const void* dy,
                     int64_t rows, int64_t h, void* dx, CUstream_st* stream);
// dgamma = (add ? dgamma : 0) + sum over rows of dy * x * rstd; `partial` has RmsNormPartial floats.
int64_t RmsNormPartial(int64_t rows, int64_t h);
void RmsNormGammaGradient(DType dtype, const void* x, const float* rstd, const void* dy, int64_t rows,
                          int64_t h, bool add, float* partial, float* dgamma, CUstream_st* stream);

}  // namespace weir::cuda
