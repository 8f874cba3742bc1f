#include "kernels/experts/cpu.h"

#include <algorithm>

#include "backend/cpu/parallel.h"
#include "kernels/common/vector_loops.h"

namespace weir {

ExpertsInputs::ExpertsInputs(const KernelContext& c)
    : x(c.inputs[0].data<float>()),
      weights(c.inputs[2].data<float>()),
      gate_up(c.inputs[3].data<float>()),
      down(c.inputs[4].data<float>()),
      gate_up_bias(c.has(5) ? c.inputs[5].data<float>() : nullptr),
      down_bias(c.has(6) ? c.inputs[6].data<float>() : nullptr),
      ids(c.inputs[1].data<int64_t>()) {}

ExpertWeights ExpertsInputs::Expert(const ExpertLayer& layer, int64_t index) const {
  const int64_t h = layer.h, i = layer.i;
  return {gate_up + index * 2 * i * h, down + index * h * i,
          gate_up_bias == nullptr ? nullptr : gate_up_bias + index * 2 * i,
          down_bias == nullptr ? nullptr : down_bias + index * h};
}

BackwardRowBuffers TakeRowBuffers(WorkspaceLayout& layout, int64_t h, int64_t i, int64_t rows) {
  return {.x = layout.Take<float>(rows * h),
          .dy = layout.Take<float>(rows * h),
          .gate_up = layout.Take<float>(rows * 2 * i),
          .a = layout.Take<float>(rows * i),
          .da = layout.Take<float>(rows * i)};
}

ExpertGradients GradientOutputs(const KernelContext& c) {
  const auto output = [&](size_t i) {
    if (i >= c.outputs.size() || !c.outputs[i]) return static_cast<float*>(nullptr);
    float* gradient = c.outputs[i].data<float>();
    if (!c.has(i + 6)) std::fill_n(gradient, c.outputs[i].elements(), 0.0f);
    return gradient;
  };
  return {output(2), output(3), output(4), output(5)};
}

void FoldSlots(const SlotRows& at, int64_t h, const float* home, const float* weights, float* out) {
  ParallelFor(at.tokens, 16, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t token = at.token[t];
      float* y = out + token * h;
      std::fill_n(y, h, 0.0f);
      for (int64_t slot = 0; slot < at.k; ++slot) {
        const float* row = home + at.row[t * at.k + slot] * h;
        AddScaled(row, h, weights == nullptr ? 1.0f : weights[token * at.k + slot], y);
      }
    }
  });
}

}  // namespace weir
