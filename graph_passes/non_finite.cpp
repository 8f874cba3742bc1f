#include "graph_passes/non_finite.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "graph/error.h"

namespace weir {

std::string PlaceOf(int64_t element, const Dims& dims) {
  Dims place(dims.size());
  for (size_t axis = dims.size(); axis-- > 0; element /= dims[axis]) place[axis] = element % dims[axis];
  return ToString(place);
}

std::string NonFiniteIn(const std::string& name, const TensorData& data) {
  if (!IsFloat(data.dtype())) return "";
  constexpr int64_t kPiece = int64_t{1} << 16;
  std::vector<float> values;
  for (int64_t first = 0; first < data.elements(); first += kPiece) {
    values.resize(static_cast<size_t>(std::min(kPiece, data.elements() - first)));
    data.ReadFloats(first, values);
    const auto found = std::ranges::find_if_not(values, [](float value) { return std::isfinite(value); });
    if (found != values.end()) return StrCat("'", name, "' holds ", *found, " at ", PlaceOf(first + (found - values.begin()), data.dims()));
  }
  return "";
}

}  // namespace weir
