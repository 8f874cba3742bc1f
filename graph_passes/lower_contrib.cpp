#include "graph_passes/lower_contrib.h"

#include <algorithm>

#include "graph/op_schema.h"

namespace weir {

void LowerContrib(Graph& graph, PassManager& passes) {
  const bool any = std::any_of(graph.nodes().begin(), graph.nodes().end(), [](const auto& node) {
    return node->schema->domain == "com.microsoft";
  });
  if (any) InferGraph(graph);
  std::vector<std::string> names;
  for (const Value* output : graph.outputs) names.push_back(output->name);
  LowerQuantized quantized;
  LowerContribMath math;
  LowerContribAttention attention;
  LowerMoe moe;
  for (Pass* pass : {static_cast<Pass*>(&quantized), static_cast<Pass*>(&math),
                     static_cast<Pass*>(&attention), static_cast<Pass*>(&moe)}) {
    passes.Run(*pass, graph);
  }
  // Outputs that a lowering replaced keep their names.
  if (names.size() != graph.outputs.size()) names.resize(1);
  for (size_t i = 0; i < names.size(); ++i) {
    if (graph.FindValue(names[i]) == nullptr) graph.Rename(graph.outputs[i], names[i]);
  }
}

}  // namespace weir
