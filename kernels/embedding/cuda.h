#pragma once
#include <cstdint>

#include "graph/dtype.h"

struct CUstream_st;

namespace weir::cuda {

// Tokens of one block. `order` sorts each block's tokens by id, then position; `runs` says at the first of an
// id how many there are, and 0 at the others.
inline constexpr int64_t kEmbeddingBlock = 4096;
struct SortedTokens {
  int32_t *order, *runs;
};
void SortTokens(const int64_t* ids, int64_t tokens, int64_t rows, const SortedTokens& sorted,
                CUstream_st* stream);
// dw[id] += the sum over each block's tokens of dy[token], from zero in token order, blocks in order.
void AddEmbeddingGradient(const int64_t* ids, const SortedTokens& sorted, DType dtype, const void* dy,
                          int64_t tokens, int64_t h, float* dw, CUstream_st* stream);

}  // namespace weir::cuda
