#pragma once
#include <vector>

#include "graph/layout.h"
#include "graph/shape.h"

namespace weir {

// Boundaries, in elements, of the ranks' runs of rows of `dims`.
inline std::vector<int64_t> RowSlices(const Dims& dims, int64_t ranks) {
  const int64_t row = dims[0] == 0 ? 0 : NumElements(dims) / dims[0];
  std::vector<int64_t> slices = {0};
  for (int64_t member = 0; member < ranks; ++member) slices.push_back(ShareOf(dims[0], ranks, member).end * row);
  return slices;
}

}  // namespace weir
