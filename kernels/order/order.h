#pragma once
#include <cmath>
#include <cstdint>

#include "graph/shape.h"
#include "kernels/common/axis_view.h"

namespace weir {

// Whether a comes before b among the largest: NaN counts as larger than every number, so that the
// order is total whatever the data.
inline bool Larger(double a, double b) { return std::isnan(a) ? !std::isnan(b) : a > b; }
inline bool Smaller(double a, double b) { return Larger(b, a); }

// dims[axis] = k for TopK.
Shape TopKShape(Shape x, int64_t axis, const Dim& k);

}  // namespace weir
