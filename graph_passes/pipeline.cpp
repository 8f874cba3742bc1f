#include "graph_passes/pipeline.h"

namespace weir {

void Canonicalize(Graph& graph, const CanonicalizeOptions& options, PassManager& passes) {
  (void)options;
  (void)graph;
  (void)passes;
}

}  // namespace weir
