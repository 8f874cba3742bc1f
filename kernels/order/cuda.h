#pragma once
#include <cstdint>

#include "graph/dtype.h"

struct CUstream_st;

namespace weir::cuda {

// Rows as in softmax: `size` elements `inner` apart, `rows` of them.
struct OrderShape {
  int64_t rows, size, inner;
};
// The first k of every row in order: the largest (or smallest), ties by lowest id, NaN above every number.
// `values` or `ids` may be null. Activations, int32, int64.
void TopK(DType dtype, const OrderShape& shape, int64_t k, bool largest, const void* x, void* values,
          int64_t* ids, CUstream_st* stream);
// The id of the best of every row; of equals the first, or the last.
void ArgBest(DType dtype, const OrderShape& shape, bool largest, bool last, const void* x, int64_t* ids,
             CUstream_st* stream);
// Running sums along the rows, in order. float32, int32, int64.
struct CumSumOptions {
  bool exclusive, reverse;
};
void CumSum(DType dtype, const OrderShape& shape, CumSumOptions options, const void* x, void* y,
            CUstream_st* stream);

}  // namespace weir::cuda
