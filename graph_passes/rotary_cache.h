#pragma once
#include <optional>
#include <vector>

#include "graph/builder.h"

namespace weir {

struct RotaryFrequencies {
  std::vector<double> inv_freq;  // float32 values
  double scale = 1;
};
// The frequencies behind tables cos, sin [positions, d/2], when scale * cos(float32(p * inv_freq))
// gives every row back within float32 rounding; nullopt otherwise (tables of low precision).
std::optional<RotaryFrequencies> RecoverFrequencies(const TensorData& cos, const TensorData& sin);

// cos, sin [S, d/2] for positions 0..S-1: a RotaryTable, or the first rows of the stored tables.
std::pair<Value*, Value*> RotaryTables(Builder& builder, Value* cos_cache, Value* sin_cache,
                                       Value* length);

}  // namespace weir
