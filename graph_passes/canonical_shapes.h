#pragma once
#include "graph_passes/pass.h"

namespace weir {

// Integers that depend on the launch are computed one way: from Shape(input_ids), at the front.
class CanonicalShapes : public Pass {
 public:
  std::string name() const override { return "canonical_shapes"; }
  std::string doc() const override;
  bool Run(Graph& graph, PassContext& context) override;
};

}  // namespace weir
