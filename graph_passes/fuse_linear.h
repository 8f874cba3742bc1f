#pragma once
#include "graph_passes/pass.h"

namespace weir {

// Products with a weight of the file become Linear, look-ups in one become Embedding.
class FuseLinear : public Pass {
 public:
  std::string name() const override { return "fuse_linear"; }
  std::string doc() const override;
  bool Run(Graph& graph, PassContext& context) override;
};

}  // namespace weir
