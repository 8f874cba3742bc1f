#pragma once
#include <vector>

#include "graph/shape.h"

namespace weir {

// Index into a tensor of dims `in` for every element of the broadcast result `out`, row-major.
std::vector<int64_t> BroadcastIndex(const Dims& in, const Dims& out);
// Element strides of `in` along the axes of `out`; 0 where it is broadcast.
std::vector<int64_t> BroadcastStrides(const Dims& in, const Dims& out);

}  // namespace weir
