#pragma once
#include <cstdint>

struct CUstream_st;

namespace weir::cuda {

struct AdamWAttributes {
  double beta1, beta2, epsilon, weight_decay;
};
// In place on p, m, v. The step's scalars are read on the device; a coefficient that is not finite changes
// nothing.
void AdamW(const AdamWAttributes& attributes, const double* learning_rate, const int64_t* step,
           const float* coefficient, const float* gradient, int64_t count, float* p, float* m, float* v,
           CUstream_st* stream);

}  // namespace weir::cuda
