#pragma once
#include <optional>

#include "graph_passes/pass.h"
#include "graph_passes/pipeline.h"

namespace weir {

// y = Experts(x, ids, weights, ...)        ==>   y, counts = PipelinedLlep(x, ids, weights, ...)
// dx, ... = ExpertsGradient(...)           ==>   dx, ... = PipelinedLlepGradient(..., counts)
// Without options the rows of a rank travel in one chunk and every expert stays with its owner: the twin
// at expert_parallel > 1. Run it after insert_recompute: the gradient replays the routes and the plan of
// the forward pass, however often the layer is recomputed.
class StreamDispatch : public Pass {
 public:
  StreamDispatch(const std::optional<StreamDispatchOptions>& options, int64_t expert_parallel)
      : options_(options), expert_parallel_(expert_parallel) {}
  std::string name() const override { return "stream_dispatch"; }
  std::string doc() const override {
    return "Experts, ExpertsGradient ==> PipelinedLlep, PipelinedLlepGradient over the expert group";
  }
  // Throws UnsupportedOp when the graph has no Experts.
  bool Run(Graph& graph, PassContext& context) override;

 private:
  Attributes Knobs(const Node& experts) const;
  std::optional<StreamDispatchOptions> options_;
  int64_t expert_parallel_;
};

}  // namespace weir
