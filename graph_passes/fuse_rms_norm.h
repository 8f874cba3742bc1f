#pragma once
#include "graph_passes/pass.h"

namespace weir {

// The chain x * 1/sqrt(mean(x*x) + epsilon) * gamma in any order, and the file's own norm ops.
class FuseRmsNorm : public Pass {
 public:
  std::string name() const override { return "fuse_rms_norm"; }
  std::string doc() const override;
  bool Run(Graph& graph, PassContext& context) override;
};

}  // namespace weir
