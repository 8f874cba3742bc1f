#pragma once
#include <utility>

#include "graph/attributes.h"

namespace weir {

// The axes [start, end) that a Shape op gives; ONNX clamps start and end instead of refusing them.
std::pair<int64_t, int64_t> ShapeRange(const Attributes& attributes, int64_t rank);

}  // namespace weir
