#pragma once
#include "graph_passes/pass.h"

namespace weir {

// All arithmetic is float32, whatever the file's dtype: Cast between floats, float16 constants ==>
// float32.
class WidenFloats : public Pass {
 public:
  std::string name() const override { return "widen_floats"; }
  std::string doc() const override;
  bool Run(Graph& graph, PassContext& context) override;
};

}  // namespace weir
