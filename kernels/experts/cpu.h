#pragma once
#include "backend/kernel.h"
#include "kernels/experts/routing.h"

namespace weir {

// Rows that one task takes through an expert. Any grouping of rows gives the same bits.
inline constexpr int64_t kBlockRows = 256;

// What Experts and ExpertsGradient both read.
struct ExpertsInputs {
  const float *x, *weights, *gate_up, *down, *gate_up_bias, *down_bias;
  const int64_t* ids;

  explicit ExpertsInputs(const KernelContext& c);
  const float* GateUpBias(const ExpertsShape& s, int64_t expert) const {
    return gate_up_bias == nullptr ? nullptr : gate_up_bias + expert * 2 * s.i;
  }
  const float* DownBias(const ExpertsShape& s, int64_t expert) const {
    return down_bias == nullptr ? nullptr : down_bias + expert * s.h;
  }
};

// out[r] = the token's row of `tokens` [N,H] for every row r of the block.
void GatherRows(const ExpertsShape& s, const ChunkRouting& routing, const RowBlock& block,
                const float* tokens, float* out);
// out[token] = sum over slots in order of [weights[token,slot] *] home[row], for the chunk's
// tokens.
void FoldSlots(const ExpertsShape& s, const ChunkRouting& routing, const float* home,
               const float* weights, float* out);

}  // namespace weir
