#pragma once
#include "kernels/attention/cuda.h"

namespace weir::cuda {

// AttentionForward, -KeyGradient and -QueryGradient in bfloat16 on tensor cores: tiles of 64 or 128 rows x 64
// columns, float32 sums in the same order. Probabilities are rounded to bfloat16 where they weigh values
// (relative to the maximum so far), as are p and ds in the gradients. Deterministic; what a query or key does
// not see adds exact zeros, so a query has the same bits whatever the other queries, and whether its unseen
// tiles are skipped. Needs aligned rows: head channels in multiples of 8.
bool SuitsTensorCores(const AttentionShape& s, const AttentionArrays& a);
bool SuitsTensorCores(const AttentionShape& s, const AttentionArrays& a, const AttentionGradients& g);

void TensorForward(const AttentionShape& s, const AttentionArrays& a, CUstream_st* stream);
void TensorKeyGradient(const AttentionShape& s, const AttentionArrays& a, const AttentionGradients& g,
                       CUstream_st* stream);
void TensorQueryGradient(const AttentionShape& s, const AttentionArrays& a, const AttentionGradients& g,
                         CUstream_st* stream);

}  // namespace weir::cuda
