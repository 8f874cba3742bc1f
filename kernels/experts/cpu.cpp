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

void GatherRows(const ExpertsShape& s, const ChunkRouting& routing, const RowBlock& block,
                const float* tokens, float* out) {
  for (int64_t row = block.begin; row < block.end; ++row, out += s.h) {
    std::copy_n(tokens + routing.Route(row) / s.k * s.h, s.h, out);
  }
}

void FoldSlots(const ExpertsShape& s, const ChunkRouting& routing, const float* home,
               const float* weights, float* out) {
  ParallelFor(routing.tokens(), 16, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t token = routing.TokenOf(t);
      float* y = out + token * s.h;
      std::fill_n(y, s.h, 0.0f);
      for (int64_t slot = 0; slot < s.k; ++slot) {
        const float* row = home + routing.RowOf(t, slot) * s.h;
        AddScaled(row, s.h, weights == nullptr ? 1.0f : weights[token * s.k + slot], y);
      }
    }
  });
}

}  // namespace weir
