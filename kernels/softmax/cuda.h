#pragma once
#include <cstdint>

#include "graph/dtype.h"

struct CUstream_st;

namespace weir::cuda {

// Rows of `size` elements, `inner` apart: element j of row r is at r / inner * size * inner + r % inner + j *
// inner.
struct SoftmaxShape {
  int64_t rows, size, inner;
  bool log;
};
void Softmax(DType dtype, const SoftmaxShape& shape, const void* x, void* y, CUstream_st* stream);
void SoftmaxGradient(DType dtype, const SoftmaxShape& shape, const void* y, const void* dy, void* dx,
                     CUstream_st* stream);

}  // namespace weir::cuda
