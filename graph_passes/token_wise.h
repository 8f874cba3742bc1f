#pragma once
#include <string>

#include "graph/graph.h"

namespace weir {

// Whether every forward node but Attention treats each position of a sequence alike and by itself, so that a part of
// the sequence may be computed apart from the rest: no sum, choice or reordering along the sequence, no value made
// from positions but by RotaryTable, no use of the sequence's length but as a dim. Shapes are symbolic. Returns one
// line per node that does not, or that is not known to; "" when all do.
std::string MixedPositions(const Graph& graph);

}  // namespace weir
