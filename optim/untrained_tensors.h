#pragma once
#include "graph/graph.h"
#include "importer/safetensors.h"

namespace weir {

// What training leaves as it is and a file of weights holds all the same, so that it is the whole model. Under the names and with the
// bytes of `names` (--names) every tensor that no parameter is; without `names` the constants of the model's own file. Where a parameter
// has no name in `names`, which may hold its old values under another: only what is known to be a constant. Metadata: what `names` ties.
Safetensors UntrainedTensors(const Graph& canonical, const Safetensors* names);

}  // namespace weir
