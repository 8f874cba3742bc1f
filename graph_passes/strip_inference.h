#pragma once
#include "graph_passes/pass.h"

namespace weir {

// Inputs and outputs of a generating model become those of a training one: {input_ids} => {logits}.
class StripInference : public Pass {
 public:
  std::string name() const override { return "strip_inference"; }
  std::string doc() const override;
  bool Run(Graph& graph, PassContext& context) override;
};

// Keeps the logits. A loss output is compared with the mean cross-entropy that training adds; what
// was dropped is said in graph.stripped, what could not be proved in graph.notices.
void StripOutputs(Graph& graph, PassContext& context);

}  // namespace weir
