#pragma once
#include "graph_passes/pass.h"

namespace weir {

// Routers work on rows of tokens [N,..], as the experts do, whatever the exporter flattened first.
class FlattenRouter final : public Pass {
 public:
  std::string name() const override { return "flatten_router"; }
  std::string doc() const override;
  bool Run(Graph& graph, PassContext& context) override;
};

}  // namespace weir
