#include "graph_passes/stream_optimizer.h"

#include <algorithm>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/match.h"

namespace weir {
namespace {

// m and v of the parameter that a node steps.
int64_t MomentBytes(const Node& node) {
  return BytesOf(node.in(2)->dtype, NumElements(ToDims(node.in(2)->shape))) +
         BytesOf(node.in(3)->dtype, NumElements(ToDims(node.in(3)->shape)));
}

Node& Replace(Graph& graph, Node& adamw, const StreamOptimizerOptions& options) {
  const auto next = std::next(adamw.self);
  Node* before = next == graph.nodes().end() ? nullptr : next->get();
  const std::vector<Value*> inputs = adamw.inputs, outputs = adamw.outputs;
  const std::string source = adamw.source;
  const Phase phase = adamw.phase;
  Attributes attributes = adamw.attributes;
  attributes.Set("bucket", options.bucket);
  attributes.Set("slots", options.slots);
  graph.RemoveNode(&adamw);
  Node* node = graph.AddNode(GetOp("OffloadStreamAdamW", "ai.weir"), inputs, outputs, std::move(attributes), before);
  node->source = source;
  node->phase = phase;
  InferNode(*node);
  return *node;
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
  std::stable_sort(nodes.begin(), nodes.end(), [](const Node* a, const Node* b) { return MomentBytes(*a) < MomentBytes(*b); });
  int64_t resident = 0;
  for (Node* node : nodes) {
    const int64_t bytes = MomentBytes(*node);
    if (resident + bytes <= options_.resident) {
      resident += bytes;
      context.Missed(*node, StrCat("moments stay on the device, ", bytes, " bytes within --resident"));
      continue;
    }
    context.Matched(Replace(graph, *node, options_));
  }
  return context.matches > 0;
}

}  // namespace weir
