#pragma once
#include <cstdint>

#include "graph/dtype.h"

struct CUstream_st;

namespace weir::cuda {

// y[k] = *start + k * *delta. float32, int32 or int64.
void Range(DType dtype, const void* start, const void* delta, int64_t count, void* y, CUstream_st* stream);

// y[o, d, i] = values[1] where ids[o, i] is d or d - depth, else values[0]; elements of 1 to 8 bytes.
struct OneHotShape {
  int64_t outer, depth, inner;
  bool int32_ids;
};
void OneHot(const OneHotShape& shape, int element_bytes, const void* ids, const void* values, void* y,
            CUstream_st* stream);

}  // namespace weir::cuda
