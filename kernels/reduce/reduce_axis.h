#pragma once
#include <cstdint>

#include "kernels/reduce/reference.h"

namespace weir {

// x as [outer, length, inner] reduced over `length` into y [outer, inner]. kMean and kL2 are the
// caller's (kSum, kSumSquare and a last step). One definition per element of y whatever the
// threads: rows as reduce_loops.h says; columns in blocks of 128 rows, each from zero in float32,
// folded in order in float64.
void ReduceAxis(Reduction kind, const float* x, int64_t outer, int64_t length, int64_t inner,
                float* y);

}  // namespace weir
