#pragma once
#include <cstdint>
#include <vector>

#include "graph/graph.h"

namespace weir {

// A float tensor of the user's file that is not (yet) trained: a constant that carries
// ParameterInfo, which MarkInitializers attaches while the file's dtype is still known. Its bytes
// may be missing.
bool IsInitializer(const Value* value);
// Attaches ParameterInfo to every float constant of graph.initializers.
void MarkInitializers(Graph& graph);

// The trained parameter behind a float constant: the same Value with role kParameter, dtype float32
// and no bytes (they are read through ParameterInfo). A parameter is handed back as it is.
Value* AsParameter(Graph& graph, Value* initializer);
// The same with axes of size 1 removed: [1,4,1,1] becomes [4]. Elements keep their order.
Value* SqueezedParameter(Graph& graph, Value* initializer);
// The parameter whose axis a is axis perm[a] of `initializer` (a Transpose that costs nothing).
// Made once: tied uses share it. When another layout of the same tensor is already a parameter, the
// result is a Transpose node of that one, so that a tensor is never trained twice.
Value* PermutedParameter(Graph& graph, Value* initializer, const std::vector<int64_t>& perm);

}  // namespace weir
