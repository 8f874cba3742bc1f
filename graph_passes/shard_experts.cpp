#include "graph_passes/shard_experts.h"

#include <set>

#include "graph/error.h"
#include "graph/layout.h"
#include "graph/op_schema.h"
#include "graph_passes/keep_rows.h"

namespace weir {
namespace {

bool IsWeightOf(const Use& use) {
  return use.node->op().starts_with("PipelinedLlep") && use.index >= 3 && use.index <= 6;
}

}  // namespace

void ShardExperts::Shard(Graph& graph, Value& weight) const {
  const std::string what = "expert weight", instead = "--expert-parallel=1";
  for (const Use& use : weight.uses) {
    WEIR_CHECK(IsWeightOf(use), ErrorCode::kUnsupportedOp, what, " '", weight.name, "' is also read by ", use.node->op(),
               ", so it cannot be spread over ranks; use ", instead);
  }
  KeepRows(weight, ShareOf(weight.shape[0].Constant(), ranks_, member_), "replica", what, instead);
  if (weight.role != Role::kParameter) return;
  if (Value* accumulator = graph.FindValue(weight.name + ".grad")) accumulator->shape = weight.shape;
}

bool ShardExperts::Run(Graph& graph, PassContext& context) {
  std::set<Value*> cut;
  for (const auto& node : graph.nodes()) {
    if (node->op() != "PipelinedLlep") continue;
    for (size_t i = 3; i < node->inputs.size(); ++i) {
      if (node->in(i) != nullptr && cut.insert(node->in(i)).second) Shard(graph, *node->in(i));
    }
    context.Matched(*node);
  }
  if (context.matches == 0) return false;
  InferGraph(graph);
  return true;
}

}  // namespace weir
