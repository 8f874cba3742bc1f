#pragma once
#include "graph/gradient.h"

namespace weir {

// Optional output `index` of the forward node, kept for the backward node. The forward node gains
// it (named "<output 0>.<suffix>") the first time a gradient is wanted.
Value* SavedOutput(GradientContext& g, size_t index, const char* suffix);

// Removes output `index` of the node that made `value`, which nothing uses.
void DropOutput(Graph& graph, Value* value);

}  // namespace weir
