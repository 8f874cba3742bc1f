#pragma once
#include "graph_passes/pass.h"

namespace weir {

// What canonicalisation must have reached: {input_ids} => {logits [batch,sequence,V]}, every op one
// that runs, every constant with its bytes, every weight trained. Throws one error that lists all problems
// and, for weights left over, the near misses of the passes that ran.
void CheckCanonical(const Graph& graph, const std::vector<PassRecord>& passes);

}  // namespace weir
