#pragma once
#include "graph_passes/pass.h"

namespace weir {

// The head sees every token, not only the last one.
class BypassLastToken : public Pass {
 public:
  std::string name() const override { return "bypass_last_token"; }
  std::string doc() const override;
  bool Run(Graph& graph, PassContext& context) override;
};

}  // namespace weir
