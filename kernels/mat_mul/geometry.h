#pragma once
#include <utility>

#include "graph/shape.h"

namespace weir {

// Sizes of y = a b with NumPy batch broadcasting and 1-D operands: `batches` products of an [m,k]
// and a [k,n] matrix.
struct MatMulGeometry {
  int64_t m = 1, n = 1, k = 1, batches = 1;
  Dims batch, a_batch, b_batch;  // broadcast, and each operand's own
  Dims y;                        // 1-D operands' axes dropped

  // The matrices of a and b (counted in their own storage) behind product `index`.
  std::pair<int64_t, int64_t> Matrices(int64_t index) const;
};

// Throws InvalidShape when the operands do not match.
MatMulGeometry MakeMatMulGeometry(const Dims& a, const Dims& b);

}  // namespace weir
