#pragma once
#include <algorithm>
#include <vector>

#include "graph/shape.h"

namespace weir {

// Index into a tensor of dims `in` for every element of the broadcast result `out`, row-major.
std::vector<int64_t> BroadcastIndex(const Dims& in, const Dims& out);
// Element strides of `in` along the axes of `out`; 0 where it is broadcast.
std::vector<int64_t> BroadcastStrides(const Dims& in, const Dims& out);

// A broadcast of several operands as rows along which every operand has stride 0 or 1. Adjacent
// axes that all operands walk alike are merged: equal shapes are one row, a trailing vector gives
// long rows.
struct BroadcastRows {
  int64_t length = 1;                         // of a row
  std::vector<int64_t> dims;                  // outer axes, rows counted row-major
  std::vector<std::vector<int64_t>> strides;  // [operand][outer axis]
  std::vector<int64_t> row_stride;            // [operand]: 0 or 1
};
BroadcastRows PlanBroadcast(const Dims& out, const std::vector<const Dims*>& operands);

// Calls body(first, offsets, count) for every piece of a row that output elements [begin, end)
// touch: `first` is the output index, offsets[k] the index into operand k.
template <class Body>
void ForEachPiece(const BroadcastRows& rows, int64_t begin, int64_t end, const Body& body) {
  std::vector<int64_t> offsets(rows.strides.size());
  while (begin < end) {
    const int64_t column = begin % rows.length, count = std::min(rows.length - column, end - begin);
    for (size_t k = 0; k < offsets.size(); ++k) {
      int64_t row = begin / rows.length;
      offsets[k] = column * rows.row_stride[k];
      for (size_t axis = rows.dims.size(); axis-- > 0; row /= rows.dims[axis]) {
        offsets[k] += row % rows.dims[axis] * rows.strides[k][axis];
      }
    }
    body(begin, offsets.data(), count);
    begin += count;
  }
}

}  // namespace weir
