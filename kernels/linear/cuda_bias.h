#pragma once
#include <cstdint>

#include "graph/dtype.h"

struct CUstream_st;

namespace weir::cuda {

// db = (add ? db : 0) + sum over rows of dy [rows, columns]; `partial` has BiasGradientPartial
// floats.
int64_t BiasGradientPartial(int64_t rows, int64_t columns);
void BiasGradient(DType dtype, const void* dy, int64_t rows, int64_t columns, bool add,
                  float* partial, float* db, CUstream_st* stream);

}  // namespace weir::cuda
