#pragma once
#include <unordered_map>

#include "graph/graph.h"
#include "graph/op_schema.h"

namespace weir {

// Runs a graph node by node through the operators' references, parameters at their file values.
// Returns output 0.
Array<float> Interpret(const Graph& graph, const std::unordered_map<std::string, Array<float>>& feeds);

// max |a - b| / max |b|.
double RelativeError(const Array<float>& a, const Array<float>& b);

}  // namespace weir
