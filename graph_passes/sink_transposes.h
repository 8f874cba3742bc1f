#pragma once
#include "graph_passes/pass.h"

namespace weir {

// Transposes move down through ops that do not mind, until they meet their inverse.
class SinkTransposes : public Pass {
 public:
  std::string name() const override { return "sink_transposes"; }
  std::string doc() const override;
  bool Run(Graph& graph, PassContext& context) override;
};

}  // namespace weir
