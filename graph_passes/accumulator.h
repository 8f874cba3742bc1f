#pragma once
#include "graph/graph.h"

namespace weir {

// The accumulator whose buffer `value` updates in place; `value` itself where it is one.
const Value* AccumulatorOf(const Value* value);
// Of the parameter that `accumulator` collects the gradient of.
Value& ParameterOf(const Graph& graph, const Value& accumulator);

}  // namespace weir
