#pragma once
#include <cstdint>

struct CUstream_st;

namespace weir::cuda {

// own[k] = the ranks' values summed by the tree of backend/tree_reduce.h; rank r's are rows[r * count + k], but this
// rank's, `rank`, are own[k].
void AddTree(float* own, const float* rows, int64_t ranks, int64_t rank, int64_t count, CUstream_st* stream);

}  // namespace weir::cuda
