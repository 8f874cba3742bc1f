#include "kernels/common/index_map.h"

#include <algorithm>

namespace weir {

int64_t CheckedElements(const Dims& dims) {
  const int64_t count = NumElements(dims);
  WEIR_CHECK(count <= (int64_t{1} << 31), ErrorCode::kInvalidShape, "a result of ", ToString(dims),
             " elements is too large to evaluate here; at most 2^31");
  return count;
}

Dims Strides(const Dims& dims) {
  Dims strides(dims.size(), 1);
  for (size_t i = dims.size(); i-- > 1;)
    strides[i - 1] = strides[i] * std::max<int64_t>(dims[i], 1);
  return strides;
}

int64_t NormalizeAxis(int64_t axis, int64_t rank) {
  WEIR_CHECK(axis >= -rank && axis < rank, ErrorCode::kInvalidShape, "axis ", axis,
             " is out of range for rank ", rank);
  return axis < 0 ? axis + rank : axis;
}

std::vector<int64_t> NormalizeAxes(const std::vector<int64_t>& axes, int64_t rank) {
  std::vector<int64_t> out;
  for (const int64_t axis : axes) {
    const int64_t normal = NormalizeAxis(axis, rank);
    WEIR_CHECK(std::find(out.begin(), out.end(), normal) == out.end(), ErrorCode::kInvalidShape,
               "axis ", axis, " is given twice");
    out.push_back(normal);
  }
  return out;
}

int64_t NormalizeIndex(int64_t id, int64_t size, int64_t position) {
  WEIR_CHECK(id >= -size && id < size, ErrorCode::kInvalidArgument, "index ", id, " at position ",
             position, " is outside [", -size, ", ", size, ")");
  return id < 0 ? id + size : id;
}

}  // namespace weir
