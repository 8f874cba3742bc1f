#pragma once
#include "graph_passes/pass.h"

namespace weir {

// Computes in bfloat16 with float32 masters (docs/streaming.md, dtype table):
//   y = Linear(x, w)   ==>   w.bf16 = Cast<to = 16>(w)   once per step (phase begin)
//                            y = Linear(x, w.bf16)       x, y bfloat16
// Matrix products, attention, experts, norms, rotary and the element-wise ops between them take and give
// bfloat16. Routers (all between their Linear and Experts), vectors, row statistics, weight gradients,
// reductions and whatever else mixes with float32 stay float32, with a Cast at each crossing. Graph outputs
// keep float32. Parameters, accumulators and moments do not change.
// kWeights rounds the parameters that kCompute would, and computes in float32 on all devices:
//   y = Linear(x, w)   ==>   y = Linear(x, Cast<to = 1>(Cast<to = 16>(w)))
class LowerPrecision final : public Pass {
 public:
  enum Extent { kCompute, kWeights };
  explicit LowerPrecision(Extent extent = kCompute) : extent_(extent) {}
  std::string name() const override { return "lower_precision"; }
  std::string doc() const override { return "bfloat16 compute with float32 master weights"; }
  bool Run(Graph& graph, PassContext& context) override;

 private:
  Extent extent_;
};

}  // namespace weir
