#pragma once
#include "graph/layout.h"
#include "graph_passes/pass.h"

namespace weir {

// GradientNorm(acc...)   ==>   GradientNorm(TreeReduceGradient(acc)...)
// Every accumulator is summed over the ranks that hold the same parameter (ParameterInfo::shared_by) before
// anything reads it as the gradient of the step. Parameters that no other rank holds stay as they are. The
// norm then sums over the expert group what its ranks hold shards of (attribute `sharded`); of a head's shard it takes the squares of
// all shards' blocks (BlockSquares), and so has the bits of the whole.
class ReduceGradients : public Pass {
 public:
  // Leaves of `vocab_leaf` columns are what a spread head is cut at.
  explicit ReduceGradients(const Layout& layout, int64_t vocab_leaf = 2048) : layout_(layout), vocab_leaf_(vocab_leaf) {}
  std::string name() const override { return "reduce_gradients"; }
  std::string doc() const override { return "accumulators before GradientNorm ==> sums over ranks, TreeReduceGradient"; }
  bool Run(Graph& graph, PassContext& context) override;

 private:
  Value* Sum(Graph& graph, Node* norm, Value* gradient, const std::string& group);

  Layout layout_;
  int64_t vocab_leaf_;
};

}  // namespace weir
