#pragma once
#include "graph_passes/pass.h"

namespace weir {

// Decides for every float tensor of the file whether it is trained, by how the graph uses it.
class ClassifyParameters final : public Pass {
 public:
  std::string name() const override { return "classify_parameters"; }
  std::string doc() const override;
  bool Run(Graph& graph, PassContext& context) override;
};

inline constexpr const char* kNoGradient = "no gradient reaches it";  // a FrozenTensor's reason

// A tensor of the file that stays a constant, and why.
struct FrozenTensor {
  const Value* value;
  std::string reason;
};
std::vector<FrozenTensor> FrozenTensors(const Graph& graph);

}  // namespace weir
