#pragma once
#include "graph_passes/pass.h"
#include "graph_passes/pipeline.h"

namespace weir {

// Accumulators <parameter>.grad   ==>   gradient_norm = GradientNorm(all accumulators), clipping, and one
// AdamW per parameter with the moments <parameter>.m and <parameter>.v.
// Every parameter steps every time ("always step"): one that no gradient reached is stepped with a zero
// gradient, as torch does for grad = 0 and unlike grad = None.
class AddOptimizer : public Pass {
 public:
  explicit AddOptimizer(const TrainingOptions& options) : options_(options) {}
  std::string name() const override { return "add_optimizer"; }
  std::string doc() const override { return "accumulators ==> GradientNorm, ClipCoefficient, AdamW"; }
  bool Run(Graph& graph, PassContext& context) override;

 private:
  bool Decays(const Value& parameter) const;
  TrainingOptions options_;
};

}  // namespace weir
