#pragma once
#include <optional>
#include <vector>

#include "graph/shape.h"

namespace weir {

// Result shapes of the copying ops, for symbolic inference and (on constants) for evaluation.
// Provable misuse throws InvalidShape.

// `target` entries: a size, 0 = the input's size there (unless allowzero), one -1 = what is left.
Shape ReshapedShape(const Shape& x, const Shape& target, bool allowzero);
// Without axes every axis of size 1 goes.
Shape SqueezedShape(const Shape& x, const std::optional<std::vector<int64_t>>& axes);
// `axes` count in the result.
Shape UnsqueezedShape(const Shape& x, const std::vector<int64_t>& axes);
// [product before axis, product from axis on]
Shape FlattenedShape(const Shape& x, int64_t axis);

}  // namespace weir
