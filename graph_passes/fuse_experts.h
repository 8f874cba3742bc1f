#pragma once
#include "graph_passes/pass.h"

namespace weir {

// Decomposed experts become one Experts node (import dialects: batched products of gathered
// weights, sorted and sliced groups, loops over experts, every expert on every token under a mask).
class FuseExperts final : public Pass {
 public:
  std::string name() const override { return "fuse_experts"; }
  std::string doc() const override;
  bool Run(Graph& graph, PassContext& context) override;
};

}  // namespace weir
