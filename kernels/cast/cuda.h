#pragma once
#include <cstdint>

#include "graph/dtype.h"

struct CUstream_st;

namespace weir::cuda {

// y = x in another element type, by convert.h's rules; y may be x when elements have one size.
void Cast(DType from, DType to, const void* x, int64_t count, void* y, CUstream_st* stream);

}  // namespace weir::cuda
