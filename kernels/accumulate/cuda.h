#pragma once
#include <cstdint>

struct CUstream_st;

namespace weir::cuda {

// acc[k] += g[k].
void Accumulate(float* acc, const float* g, int64_t count, CUstream_st* stream);

}  // namespace weir::cuda
