#pragma once
#include <cstdint>

#include "graph/dtype.h"

struct CUstream_st;

namespace weir::cuda {

// HeadRows (kernels/head_exchange/exchange.h) with strides and width in elements of float32 or bfloat16.
struct HeadRowsShape {
  int64_t to_stride, from_stride, rows, width, replicas, replica_stride;
};
void MoveHeadRows(DType dtype, const HeadRowsShape& shape, const void* from, void* to, CUstream_st* stream);

}  // namespace weir::cuda
