#pragma once
#include "graph/graph.h"

namespace weir {

// Elementwise integer arithmetic on known elements ([batch, 1, sequence] * [1, 4, 1]). Sets the
// content of the node's output where inference left it open.
void InferContent(Node& node);

}  // namespace weir
