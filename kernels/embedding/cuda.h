#pragma once
#include <cstdint>

#include "graph/dtype.h"

struct CUstream_st;

namespace weir::cuda {

// Tokens of one block; `order` sorts each block's tokens by id, then position.
inline constexpr int64_t kEmbeddingBlock = 4096;
void SortTokens(const int64_t* ids, int64_t tokens, int64_t rows, int32_t* order, CUstream_st* stream);
// dw[id] += the sum over each block's tokens of dy[token], from zero in token order, blocks in order.
void AddEmbeddingGradient(const int64_t* ids, const int32_t* order, DType dtype, const void* dy, int64_t tokens, int64_t h,
                          float* dw, CUstream_st* stream);

}  // namespace weir::cuda
