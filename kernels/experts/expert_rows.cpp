#include "kernels/experts/expert_rows.h"

#include "kernels/common/vector_loops.h"
#include "kernels/experts/activation_loops.h"
#include "kernels/gemm/sgemm.h"

namespace weir {

void ForwardRows(const ExpertLayer& layer, const ExpertWeights& weights, int64_t rows,
                 const float* x, float* gate_up, float* a, float* y) {
  const int64_t h = layer.h, i = layer.i;
  Sgemm(rows, 2 * i, h, x, h, weights.gate_up, h, gate_up, 2 * i,
        {.transpose_b = true, .bias = weights.gate_up_bias});
  for (int64_t r = 0; r < rows; ++r) {
    GatedForwardRow(layer.activation, gate_up + r * 2 * i, i, a + r * i);
  }
  Sgemm(rows, h, i, a, i, weights.down, i, y, h, {.transpose_b = true, .bias = weights.down_bias});
}

void BackwardRows(const ExpertLayer& layer, const ExpertWeights& weights, int64_t rows,
                  const BackwardRowBuffers& b, const int64_t* at, const float* weight,
                  float* dweight, float* dx) {
  const int64_t h = layer.h, i = layer.i, width = 2 * i;
  Sgemm(rows, width, h, b.x, h, weights.gate_up, h, b.gate_up, width,
        {.transpose_b = true, .bias = weights.gate_up_bias});
  Sgemm(rows, i, h, b.dy, h, weights.down, i, b.da, i);
  for (int64_t r = 0; r < rows; ++r) {
    const float w = weight[at[r]];
    float *a_row = b.a + r * i, *da_row = b.da + r * i, *dy_row = b.dy + r * h;
    GatedBackwardRow(layer.activation, b.gate_up + r * width, i, w, da_row, a_row);
    // dy . (down a + bias) = (down^T dy) . a + dy . bias, which needs no down projection.
    const float* bias = weights.down_bias;
    dweight[at[r]] = Dot(a_row, da_row, i) + (bias ? Dot(dy_row, bias, h) : 0.0f);
    CopyScaled(dy_row, h, w, dy_row);
  }
  Sgemm(rows, h, width, b.gate_up, width, weights.gate_up, h, dx, h);
}

}  // namespace weir
