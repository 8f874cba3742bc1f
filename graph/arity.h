#pragma once
#include "graph/graph.h"

namespace weir {

// Throws InvalidModel when a node has too few or too many inputs or outputs, or lacks a required input.
// Nodes of a Graph have passed it: rewrites may follow their required inputs.
void CheckArity(const Node& node);

}  // namespace weir
