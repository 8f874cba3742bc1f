#include "kernels/common/index_map.h"
#include "kernels/reduce/reference.h"

namespace weir {

std::vector<bool> ReducedAxes(const Attributes& attributes, size_t rank,
                              const std::vector<int64_t>* given) {
  std::vector<bool> reduced(rank, false);
  if (given == nullptr || given->empty()) {
    if (attributes.Int("noop_with_empty_axes", 0) == 0) reduced.assign(rank, true);
    return reduced;
  }
  for (const int64_t axis : NormalizeAxes(*given, static_cast<int64_t>(rank))) {
    reduced[static_cast<size_t>(axis)] = true;
  }
  return reduced;
}

Dims ReducedDims(const Dims& dims, const std::vector<bool>& reduced, bool keepdims,
                 std::vector<int64_t>* slot) {
  Dims out;
  std::vector<int64_t> strides(dims.size(), 0);
  int64_t stride = 1;
  for (size_t axis = dims.size(); axis-- > 0;) {
    if (reduced[axis]) continue;
    strides[axis] = stride;
    stride *= dims[axis];
  }
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    if (!reduced[axis]) out.push_back(dims[axis]);
    if (reduced[axis] && keepdims) out.push_back(1);
  }
  if (slot == nullptr) return out;
  slot->resize(static_cast<size_t>(NumElements(dims)));
  std::vector<int64_t> position(dims.size(), 0);
  int64_t at = 0;
  for (int64_t& s : *slot) {
    s = at;
    for (size_t axis = dims.size(); axis-- > 0;) {
      at += strides[axis];
      if (++position[axis] < dims[axis]) break;
      at -= strides[axis] * dims[axis];
      position[axis] = 0;
    }
  }
  return out;
}

}  // namespace weir
