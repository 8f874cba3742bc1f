#pragma once
#include "graph_passes/pass.h"

namespace weir {

// y = f(x, w); loss = g(y)   ==>   w.grad' = ZeroFill(w.grad)            in kBegin, per parameter
//                                  ... backward nodes in kBackward ...
//                                  w.grad'' = <accumulating op>(..., w.grad')
// Walks the forward nodes between a parameter and the graph's outputs (losses, whose sum is trained) in
// reverse execution order and calls each op's gradient. Sums have one order: an activation's gradient is the left fold of its
// consumers' contributions in reverse execution order of the consumers (within one consumer, in the
// order its gradient function adds); a parameter's contributions join its one accumulator in the same
// order, however often it is used. Parameters off every path keep a zero accumulator. Every op without a
// gradient is reported in one UnsupportedOp error.
class BuildGradient : public Pass {
 public:
  std::string name() const override { return "build_gradient"; }
  std::string doc() const override { return "forward ==> forward, backward, accumulators <parameter>.grad"; }
  bool Run(Graph& graph, PassContext& context) override;
};

}  // namespace weir
