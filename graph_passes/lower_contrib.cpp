#include "graph_passes/lower_contrib.h"

#include <algorithm>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/notices.h"

namespace weir {

// Every lowering replaces output 0; only the sums of skip norms may be wanted alone.
static void CheckFirstOutputs(const Graph& graph) {
  for (const auto& node : graph.nodes()) {
    const bool alone = node->schema->domain != "com.microsoft" || node->op().starts_with("Skip");
    WEIR_CHECK(alone || node->out(0) != nullptr, ErrorCode::kUnsupportedOp, NameOf(*node),
               ": its first output is not used, another one is");
  }
}

void LowerContrib(Graph& graph, PassManager& passes) {
  const bool any = std::any_of(graph.nodes().begin(), graph.nodes().end(), [](const auto& node) {
    return node->schema->domain == "com.microsoft";
  });
  if (any) {
    graph.RemoveDeadNodes();
    InferGraph(graph);
    CheckFirstOutputs(graph);
  }
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
