#pragma once
#include "kernels/common/index_map.h"

namespace weir {

// dims as [outer, size of axis, inner].
struct AxisView {
  int64_t outer = 1, size = 1, inner = 1;
};
inline AxisView ViewAxis(const Dims& dims, int64_t axis) {
  const auto at = dims.begin() + NormalizeAxis(axis, Rank(dims));
  return {NumElements(Dims(dims.begin(), at)), *at, NumElements(Dims(at + 1, dims.end()))};
}

}  // namespace weir
