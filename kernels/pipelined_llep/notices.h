#pragma once
#include <string>
#include <vector>

#include "graph/graph.h"

namespace weir {

// How the experts of a concrete graph travel, for people: chunks, the bound on the rows that a rank
// receives, and why chunks are larger than asked. Equal layers say it once.
std::vector<std::string> DispatchNotices(const Graph& graph);

}  // namespace weir
