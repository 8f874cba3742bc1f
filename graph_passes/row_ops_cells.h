#pragma once
#include <vector>

#include "graph_passes/row_trace.h"

namespace weir {

// Walking the cells of a RowTensor: opaque axes count as 1.

Dims CellDims(const RowTensor& x);
Dims RowMajorStrides(const Dims& dims);
Dims CellStrides(const RowTensor& x);  // 0 on opaque axes
// Strides of x's cells over the axes of a broadcast result of rank `rank`.
Dims BroadcastStrides(const RowTensor& x, size_t rank);
int64_t Dot(const Dims& a, const Dims& b);
// Position of a cell; throws when the index is outside the tensor.
size_t CellAt(const RowTensor& x, const Dims& index);
void CheckCells(int64_t count);
void Advance(Dims& index, const Dims& dims);  // to the next in row-major order

// Fills out.cells, cell by cell in row-major order, from out.dims and out.opaque. Throws when a file
// asks for more cells than any small routing has.
template <class Cell>
void Remap(RowTensor& out, Cell cell) {
  const Dims dims = CellDims(out);
  const int64_t count = NumElements(dims);
  CheckCells(count);
  out.cells.clear();
  out.cells.reserve(static_cast<size_t>(count));
  Dims index(dims.size(), 0);
  for (int64_t n = 0; n < count; ++n) {
    out.cells.push_back(cell(index));
    Advance(index, dims);
  }
}

}  // namespace weir
