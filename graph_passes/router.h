#pragma once
#include <vector>

#include "graph_passes/row_trace.h"

namespace weir {

// Every node whose ids could route tokens, in graph order. Which of them do, only a trace tells.
std::vector<Router> FindRouters(Graph& graph);

// Routings that together exercise a dispatch: every expert used, in order and in reverse, evenly
// and unevenly, at two launch shapes.
std::vector<Routing> FullRoutings(const Router& router);
// One where most experts get no token.
Routing SparseRouting(const Router& router);

}  // namespace weir
