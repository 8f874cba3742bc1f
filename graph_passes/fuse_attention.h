#pragma once
#include "graph_passes/pass.h"

namespace weir {

// Attention written as matrix products, or as ONNX's operator, becomes Attention.
class FuseAttention : public Pass {
 public:
  std::string name() const override { return "fuse_attention"; }
  std::string doc() const override;
  bool Run(Graph& graph, PassContext& context) override;
};

}  // namespace weir
