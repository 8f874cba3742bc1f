#include "graph_passes/stream_optimizer.h"

#include <algorithm>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/match.h"
#include "graph_passes/replace_node.h"

namespace weir {
namespace {

// m, v and the low halves of the parameter that a node steps.
int64_t StateBytes(const Node& node) {
  int64_t bytes = 0;
  for (const size_t i : {2, 3, 7}) {
    if (const Value* state = node.in(i)) bytes += BytesOf(state->dtype, NumElements(ToDims(state->shape)));
  }
  return bytes;
}

Node& Replace(Graph& graph, Node& adamw, const StreamOptimizerOptions& options) {
  Attributes attributes = adamw.attributes;
  attributes.Set("bucket", options.bucket);
  attributes.Set("slots", options.slots);
  return ReplaceNode(graph, adamw, GetOp("OffloadStreamAdamW", "ai.weir"), adamw.inputs, adamw.outputs, std::move(attributes));
}

}  // namespace

bool StreamOptimizer::Run(Graph& graph, PassContext& context) {
  WEIR_CHECK(options_.bucket > 0 && options_.slots > 0 && options_.resident >= 0, ErrorCode::kInvalidArgument, "--bucket=",
             options_.bucket, ", --slots=", options_.slots, ", --resident=", options_.resident,
             ": bucket and slots must be positive, resident not negative");
  context.listed = true;
  std::vector<Node*> nodes;
  for (const auto& node : graph.nodes()) {
    if (Is(*node, "AdamW", "ai.weir")) nodes.push_back(node.get());
  }
  WEIR_CHECK(!nodes.empty(), ErrorCode::kInvalidArgument, "--bucket: the graph has no AdamW to stream");
  std::stable_sort(nodes.begin(), nodes.end(), [](const Node* a, const Node* b) { return StateBytes(*a) < StateBytes(*b); });
  int64_t resident = 0;
  for (Node* node : nodes) {
    const int64_t bytes = StateBytes(*node);
    if (resident + bytes <= options_.resident) {
      resident += bytes;
      context.Missed(*node, StrCat("state stays on the device, ", bytes, " bytes within --resident"));
      continue;
    }
    context.Matched(Replace(graph, *node, options_));
  }
  return context.matches > 0;
}

}  // namespace weir
