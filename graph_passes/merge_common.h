#pragma once
#include "graph_passes/pass.h"

namespace weir {

// Equal computations and equal constants become one; commutative inputs get one order.
class MergeCommon : public Pass {
 public:
  std::string name() const override { return "merge_common"; }
  std::string doc() const override;
  bool Run(Graph& graph, PassContext& context) override;
};

}  // namespace weir
