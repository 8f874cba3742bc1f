#pragma once
#include <cstdint>

#include "kernels/experts/activation.h"

namespace weir {

// Rows that one task takes through an expert. Any grouping of rows gives the same bits.
inline constexpr int64_t kBlockRows = 256;

// The weights of one expert; biases may be null.
struct ExpertWeights {
  const float *gate_up, *down, *gate_up_bias, *down_bias;
};

// What every row through an expert needs to know.
struct ExpertLayer {
  int64_t h, i;
  ExpertActivation activation;
};

// y = down act(gate_up x + bias) + bias for each row. gate_up [rows,2I] and a [rows,I] are scratch;
// y may be x.
void ForwardRows(const ExpertLayer& layer, const ExpertWeights& weights, int64_t rows,
                 const float* x, float* gate_up, float* a, float* y);

// Per row: x, dy, [g;u], a, da. BackwardRows reads x and dy and leaves what weight gradients need:
// x, dy * weight, [dg;du], a.
struct BackwardRowBuffers {
  float *x, *dy, *gate_up, *a, *da;
  BackwardRowBuffers From(const ExpertLayer& layer, int64_t row) const {
    return {x + row * layer.h, dy + row * layer.h, gate_up + row * 2 * layer.i, a + row * layer.i,
            da + row * layer.i};
  }
};

// Recomputes the forward pass of each row, then dx [rows,H] and dweight. Row r's router weight is
// weight[at[r]] and its gradient dweight[at[r]]; the two may be one array.
void BackwardRows(const ExpertLayer& layer, const ExpertWeights& weights, int64_t rows,
                  const BackwardRowBuffers& buffers, const int64_t* at, const float* weight,
                  float* dweight, float* dx);

}  // namespace weir
