#include "graph_passes/row_ops_cells.h"

#include "graph/error.h"

namespace weir {

Dims CellDims(const RowTensor& x) {
  Dims dims = x.dims;
  for (int axis : x.opaque) dims[static_cast<size_t>(axis)] = 1;
  return dims;
}

Dims RowMajorStrides(const Dims& dims) {
  Dims strides(dims.size(), 1);
  for (size_t a = dims.size(); a-- > 1;) strides[a - 1] = strides[a] * dims[a];
  return strides;
}

Dims CellStrides(const RowTensor& x) {
  Dims strides = RowMajorStrides(CellDims(x));
  for (int axis : x.opaque) strides[static_cast<size_t>(axis)] = 0;
  return strides;
}

Dims BroadcastStrides(const RowTensor& x, size_t rank) {
  const Dims own = CellStrides(x);
  Dims strides(rank, 0);
  const size_t shift = rank - x.dims.size();
  for (size_t a = 0; a < own.size(); ++a) strides[a + shift] = x.dims[a] == 1 ? 0 : own[a];
  return strides;
}

int64_t Dot(const Dims& a, const Dims& b) {
  int64_t sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

size_t CellAt(const RowTensor& x, const Dims& index) {
  WEIR_CHECK(index.size() == x.dims.size(), ErrorCode::kInvalidModel, "an index of rank ",
             index.size(), " into rank ", x.dims.size());
  for (size_t a = 0; a < index.size(); ++a) {
    WEIR_CHECK(index[a] >= 0 && index[a] < x.dims[a], ErrorCode::kInvalidModel, "index ", index[a],
               " is outside axis ", a, " of ", ToString(x.dims));
  }
  return static_cast<size_t>(Dot(index, CellStrides(x)));
}

void CheckCells(int64_t count) {
  constexpr int64_t kMostCells = int64_t{1} << 22;
  WEIR_CHECK(count <= kMostCells, ErrorCode::kInvalidModel, count, " cells are too many to trace");
}

void Advance(Dims& index, const Dims& dims) {
  for (size_t a = dims.size(); a-- > 0;) {
    if (++index[a] < dims[a]) return;
    index[a] = 0;
  }
}

}  // namespace weir
