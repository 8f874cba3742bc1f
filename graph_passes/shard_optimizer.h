#pragma once
#include "graph/layout.h"
#include "graph_passes/pass.h"

namespace weir {

// Every rank steps its share of the rows (axis 0) of each matrix that all ranks hold, with that share's moments:
//
// P [R,...], m, v;  P used        ==>  P [R_r,...], m, v alike;  AllGatherRows(P or its Cast) used, gathered once a step
// AdamW(P, g, m, v)               ==>  AdamW(P, Slice(g, rows of this rank), m, v)
//
// g is the sum over ranks, so that every bit is that of the twin. Vectors, and matrices of fewer rows than ranks, stay
// whole everywhere. Run after reduce_gradients and lower_precision (the gather then moves bfloat16). Throws
// InvalidArgument with the reasons when nothing is sharded.
class ShardOptimizer : public Pass {
 public:
  ShardOptimizer(const Layout& layout, int64_t rank) : ranks_(layout.world), rank_(rank) {}
  std::string name() const override { return "shard_optimizer"; }
  std::string doc() const override { return "parameters and moments on every rank ==> a share of their rows, gathered for the step"; }
  bool Run(Graph& graph, PassContext& context) override;

 private:
  std::string WhyNot(const Node& adamw) const;
  void Shard(Graph& graph, Node& adamw) const;
  int64_t ranks_, rank_;
};

}  // namespace weir
