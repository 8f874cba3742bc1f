#pragma once
#include <cstdint>

#include "graph/dtype.h"

struct CUstream_st;

namespace weir::cuda {

enum class Reduction { kSum, kMean, kMax, kMin, kProd, kL2, kSumSquare, kLogSumExp };

// Kept and reduced axes of x, outermost first, with their strides in x.
struct ReduceAxes {
  static constexpr int kMaxRank = 8;
  int kept_rank = 0, reduced_rank = 0;
  int64_t kept_size[kMaxRank], kept_stride[kMaxRank], reduced_size[kMaxRank], reduced_stride[kMaxRank];
};
// y, dense over the kept axes. Activations accumulate in float64 (maximum and minimum exactly), integers
// wrap.
void Reduce(Reduction kind, DType dtype, const ReduceAxes& axes, const void* x, void* y, CUstream_st* stream);

}  // namespace weir::cuda
