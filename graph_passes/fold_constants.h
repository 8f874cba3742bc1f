#pragma once
#include "graph_passes/pass.h"

namespace weir {

// Infers every shape and turns what is known at import into constants.
class FoldConstants : public Pass {
 public:
  std::string name() const override { return "fold_constants"; }
  std::string doc() const override;
  bool Run(Graph& graph, PassContext& context) override;
};

}  // namespace weir
