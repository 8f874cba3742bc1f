#pragma once
#include <cstdint>

struct CUstream_st;

namespace weir::cuda {

// to[k] += from[k]
void AddInto(float* to, const float* from, int64_t count, CUstream_st* stream);

}  // namespace weir::cuda
