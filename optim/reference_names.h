#pragma once
#include "graph/graph.h"
#include "graph_passes/pipeline.h"

namespace weir {

// Parameters take the names and layouts of a reference (layout: models/README.md), found by the values that it has for them
// (parameter.*): those of PyTorch's modules, whatever --names calls them and however it splits them. A reference without values
// changes nothing. Throws InvalidArgument when it was computed from other ones.
void NameAsReference(Graph& canonical, const NamedTensors& reference);

}  // namespace weir
