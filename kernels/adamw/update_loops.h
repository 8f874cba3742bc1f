#pragma once
#include <cstdint>

namespace weir {

// The scalars of one step as float32.
struct AdamWScalars {
  float coefficient, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon, step_size,
      root_correction2;
};

// Updates `count` elements in place.
void AdamWUpdate(const AdamWScalars& s, const float* gradient, int64_t count, float* p, float* m,
                 float* v);
// The same on masters in two halves (graph/split_master.h): the same bits of each.
void SplitAdamWUpdate(const AdamWScalars& s, const float* gradient, int64_t count, uint16_t* high,
                      uint16_t* low, float* m, float* v);

}  // namespace weir
