#pragma once
#include "graph_passes/pass.h"

namespace weir {

// Every spelling of rotary position embedding becomes Rotary with a RotaryTable.
class FuseRotary : public Pass {
 public:
  std::string name() const override { return "fuse_rotary"; }
  std::string doc() const override;
  bool Run(Graph& graph, PassContext& context) override;
};

}  // namespace weir
