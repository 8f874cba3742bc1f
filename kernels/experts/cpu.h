#pragma once
#include "backend/kernel.h"
#include "kernels/experts/weight_gradient.h"

namespace weir {

// What Experts and ExpertsGradient both read: the weights of consecutive experts are stacked.
struct ExpertsInputs {
  const float *x, *weights, *gate_up, *down, *gate_up_bias, *down_bias;
  const int64_t* ids;

  explicit ExpertsInputs(const KernelContext& c);
  ExpertWeights Expert(const ExpertLayer& layer, int64_t index) const;
};

// Buffers of `rows` rows.
BackwardRowBuffers TakeRowBuffers(WorkspaceLayout& layout, int64_t h, int64_t i, int64_t rows);

// Outputs 2.. of ExpertsGradient; those without an accumulator (input 8..) are zeroed.
ExpertGradients GradientOutputs(const KernelContext& c);

// out[token] = sum over slots in order of [weights[token,slot] *] home[row] of width h.
void FoldSlots(const SlotRows& at, int64_t h, const float* home, const float* weights, float* out);

}  // namespace weir
