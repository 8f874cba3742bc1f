#pragma once
#include <cstdint>
#include <span>

namespace weir {

// Throws InvalidArgument at the first id outside [0, rows), naming its position (in a [..., row]
// tensor whose last axis has `last` elements) and value.
void CheckIds(std::span<const int64_t> ids, int64_t last, int64_t rows);

}  // namespace weir
