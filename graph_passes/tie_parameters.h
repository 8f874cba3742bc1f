#pragma once
#include "graph_passes/pass.h"

namespace weir {

// Two matrices of the file with the same values (the exporter's transposed copy of a tied
// embedding, or a byte-identical one) are one parameter.
class TieParameters final : public Pass {
 public:
  std::string name() const override { return "tie_parameters"; }
  std::string doc() const override;
  bool Run(Graph& graph, PassContext& context) override;
};

}  // namespace weir
