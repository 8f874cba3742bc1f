#pragma once
#include "graph/graph.h"

namespace weir {

// x turned by cos and sin, whichever way the graph spells it.
struct Rotation {
  Value* x = nullptr;
  Value* cos = nullptr;
  Value* sin = nullptr;
  bool input_interleaved = false;  // pairs (2i, 2i+1) instead of (i, i + d/2)
  bool output_interleaved = false;
  bool full_tables = false;  // cos and sin have d columns instead of d/2
  explicit operator bool() const { return x != nullptr; }
};

// x * cos + rotate(x) * sin, rotate(x) = (-x2, x1) of halves or of neighbours
Rotation MatchRotateHalf(const Node& add);
// Concat or interleave of x1 * cos - x2 * sin and x2 * cos + x1 * sin
Rotation MatchSplitRotation(const Node& root);

}  // namespace weir
