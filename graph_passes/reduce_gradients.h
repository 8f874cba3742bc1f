#pragma once
#include "graph/layout.h"
#include "graph_passes/pass.h"

namespace weir {

// GradientNorm(acc...)   ==>   GradientNorm(TreeReduceGradient(acc)...)
// Every accumulator is summed over the ranks that hold the same parameter (ParameterInfo::shared_by) before
// anything reads it as the gradient of the step. Parameters that no other rank holds stay as they are. The
// norm then sums over the expert group what its ranks hold shards of (attribute `sharded`).
class ReduceGradients : public Pass {
 public:
  explicit ReduceGradients(const Layout& layout) : layout_(layout) {}
  std::string name() const override { return "reduce_gradients"; }
  std::string doc() const override { return "accumulators before GradientNorm ==> sums over ranks, TreeReduceGradient"; }
  bool Run(Graph& graph, PassContext& context) override;

 private:
  Layout layout_;
};

}  // namespace weir
