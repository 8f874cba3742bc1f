#pragma once
#include "graph/graph.h"

namespace weir {

// What canonicalisation must have reached: {input_ids} => {logits [batch,sequence,V]}, every op one
// that runs, every constant with its bytes. Throws one error that lists all problems.
void CheckCanonical(const Graph& graph);

}  // namespace weir
