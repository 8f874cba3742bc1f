#pragma once
#include "graph_passes/pass.h"

namespace weir {

// acc = ... in backward                          acc = ...; sum, staging = TreeReduceGradient(acc, staging)
// ... the rest of backward                ==>    ... the rest of backward
// TreeReduceGradient(acc), in the norm           TreeReduceJoin(sum, staging)
// Each sum begins where its accumulator is final, those of forward where backward begins, in the order of that, and hands one staging
// to the next: two rounds of the largest. After reduce_gradients and shard_parameters, for steps of one micro-batch.
class ReduceBeside : public Pass {
 public:
  std::string name() const override { return "reduce_beside"; }
  std::string doc() const override { return "sums over ranks ==> begun in backward, joined before the norm"; }
  bool Run(Graph& graph, PassContext& context) override;
};

// Elements of memory for the sum of `elements` of each of `ranks` ranks beside other work: two rounds.
int64_t StagingElements(int64_t elements, int64_t ranks);
// Where the sum of what `maker` made final may begin: behind it, or at `backward`, where backward begins.
Node* PlaceBeside(const Node& maker, Node* backward);
// Nodes that read sums stand behind it.
Node* FirstOfNorm(const Graph& graph);

}  // namespace weir
