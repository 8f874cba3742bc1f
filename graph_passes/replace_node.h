#pragma once
#include <vector>

#include "graph/graph.h"

namespace weir {

// A node of `schema` in the place of `old`, of which it takes source and phase; outputs may be those of `old`.
Node& ReplaceNode(Graph& graph, Node& old, const OpSchema& schema, std::vector<Value*> inputs, std::vector<Value*> outputs,
                  Attributes attributes);

}  // namespace weir
