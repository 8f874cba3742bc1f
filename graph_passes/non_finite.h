#pragma once
#include <string>

#include "graph/tensor_data.h"

namespace weir {

// "[3,5]": the place of an element in a tensor of `dims`, counted in row-major order.
std::string PlaceOf(int64_t element, const Dims& dims);

// "'a.weight' holds nan at [3,5]": the first element of a tensor of floats that is NaN or infinite; "" when there is none.
std::string NonFiniteIn(const std::string& name, const TensorData& data);

}  // namespace weir
