#pragma once
#include <cmath>
#include <cstdint>

#include "graph/shape.h"
#include "kernels/common/index_map.h"

namespace weir {

// Whether a comes before b among the largest: NaN counts as larger than every number, so that the
// order is total whatever the data.
inline bool Larger(double a, double b) { return std::isnan(a) ? !std::isnan(b) : a > b; }
inline bool Smaller(double a, double b) { return Larger(b, a); }

// dims as [outer, size of axis, inner].
struct AxisView {
  int64_t outer = 1, size = 1, inner = 1;
};
inline AxisView ViewAxis(const Dims& dims, int64_t axis) {
  const auto at = dims.begin() + NormalizeAxis(axis, Rank(dims));
  return {NumElements(Dims(dims.begin(), at)), *at, NumElements(Dims(at + 1, dims.end()))};
}

// dims[axis] = k for TopK.
Shape TopKShape(Shape x, int64_t axis, const Dim& k);

}  // namespace weir
