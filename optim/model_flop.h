#pragma once
#include <cstdint>

#include "graph/graph.h"

namespace weir {

// Of one token's matrix products and of causal attention, forward and backward, nothing recomputed:
// 6 * (active parameters without the embedding table) + 6 * heads * head_dim * visible keys / 2 per layer.
double ModelFlopPerToken(const Graph& canonical, int64_t sequence);

}  // namespace weir
