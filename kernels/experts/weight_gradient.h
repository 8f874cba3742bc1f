#pragma once
#include <span>

#include "kernels/experts/expert_rows.h"
#include "kernels/experts/routing.h"

namespace weir {

// Gradients [E, ...] of the weights of consecutive experts; any may be null.
struct ExpertGradients {
  float *gate_up, *down, *gate_up_bias, *down_bias;
  bool any() const { return gate_up || down || gate_up_bias || down_bias; }
};

enum class UnitSum : uint8_t {
  kAdd,  // each unit from zero, folded into what is there, in row order
  kSet,  // the one unit's partial replaces what is there
};

// Rows of a batch whose BackwardRows are done: row r lies at r - first of the buffers and its unit
// ends at unit_end[r].
struct GradientBatch {
  BackwardRowBuffers buffers;
  int64_t first;
  const int64_t* unit_end;
};

// One unit's partial of a tile or of a bias; every thread at work needs one.
int64_t UnitScratchFloats(const ExpertLayer& layer);

// dgate_up, ddown and their biases of whole units. Each block holds one expert's rows of the batch
// in canonical order; no expert has two blocks.
void SumWeightGradients(const ExpertLayer& layer, const GradientBatch& batch,
                        std::span<const RowBlock> blocks, UnitSum sum, const ExpertGradients& out,
                        std::span<float> scratch);

}  // namespace weir
