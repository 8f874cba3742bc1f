#include "kernels/mat_mul/geometry.h"

#include "graph/error.h"

namespace weir {

std::pair<int64_t, int64_t> MatMulGeometry::Matrices(int64_t index) const {
  int64_t at[2] = {0, 0}, stride[2] = {1, 1};
  const Dims* own[2] = {&a_batch, &b_batch};
  for (size_t axis = 0; axis < batch.size(); ++axis) {  // from the last axis
    const int64_t size = batch[batch.size() - 1 - axis], position = index % size;
    index /= size;
    for (int side = 0; side < 2; ++side) {
      if (axis >= own[side]->size()) continue;
      const int64_t extent = (*own[side])[own[side]->size() - 1 - axis];
      if (extent > 1) at[side] += position * stride[side];
      stride[side] *= extent;
    }
  }
  return {at[0], at[1]};
}

MatMulGeometry MakeMatMulGeometry(const Dims& a, const Dims& b) {
  WEIR_CHECK(!a.empty() && !b.empty(), ErrorCode::kInvalidShape, "MatMul: operands ", ToString(a),
             " and ", ToString(b), " must have at least one axis");
  MatMulGeometry g;
  g.k = a.back();
  if (a.size() > 1) {
    g.m = a[a.size() - 2];
    g.a_batch.assign(a.begin(), a.end() - 2);
  }
  if (b.size() > 1) {
    g.n = b.back();
    g.b_batch.assign(b.begin(), b.end() - 2);
  }
  const int64_t b_rows = b.size() > 1 ? b[b.size() - 2] : b[0];
  WEIR_CHECK(g.k == b_rows, ErrorCode::kInvalidShape, "MatMul: inner sizes of ", ToString(a),
             " and ", ToString(b), " differ");
  g.batch = BroadcastDims(g.a_batch, g.b_batch);
  g.batches = NumElements(g.batch);
  g.y = g.batch;
  if (a.size() > 1) g.y.push_back(g.m);
  if (b.size() > 1) g.y.push_back(g.n);
  return g;
}

}  // namespace weir
