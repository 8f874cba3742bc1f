#pragma once
#include <cstdint>

namespace weir {

// dW[m,k] = dy[rows,m]^T x[rows,k] of one token block; with `add`, dW += that sum from zero.
struct WeightGradientBlock {
  int64_t m, k, rows;
  const float* dy;
  int64_t dy_stride;
  const float* x;
  bool add;
};

// Floats of `partial`: one strip of dW's rows.
int64_t WeightGradientPartial(int64_t m, int64_t k);
void AddWeightGradientBlock(const WeightGradientBlock& block, float* partial, float* dw);

}  // namespace weir
