#pragma once
#include <cstdint>

struct CUstream_st;

namespace weir::cuda {

struct AdamWAttributes {
  double beta1, beta2, epsilon, weight_decay;
};
struct AdamWInputs {
  const double* learning_rate;
  const int64_t* step;
  const float *coefficient, *gradient;
};
// In place on p, m, v. The step's scalars are read on the device; a coefficient that is not finite changes
// nothing.
void AdamW(const AdamWAttributes& attributes, const AdamWInputs& inputs, int64_t count, float* p, float* m, float* v,
           CUstream_st* stream);
// The same on masters in two halves (graph/split_master.h).
void SplitAdamW(const AdamWAttributes& attributes, const AdamWInputs& inputs, int64_t count, uint16_t* high,
                uint16_t* low, float* m, float* v, CUstream_st* stream);

}  // namespace weir::cuda
