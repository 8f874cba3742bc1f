#include "graph_passes/split_master.h"

#include "graph/op_schema.h"
#include "graph_passes/match.h"
#include "graph_passes/replace_node.h"

namespace weir {
namespace {

bool RoundsToBFloat16(const Node& node) { return Is(node, "Cast") && node.out()->dtype == DType::kBFloat16; }

// "" or why the parameter that `adamw` steps stays whole.
std::string WhyNot(const Graph& graph, const Node& adamw) {
  const Value& parameter = *adamw.in(0);
  bool rounded = false;
  for (const Use& use : parameter.uses) {
    if (use.node == &adamw) continue;
    if (!RoundsToBFloat16(*use.node)) return StrCat("is read in float32 by ", use.node->op());
    rounded = true;
  }
  if (graph.IsOutput(&parameter)) return "is an output of the graph";
  return rounded ? "" : "is read by nothing";
}

Value* AddLow(Graph& graph, const Value& parameter) {
  Value* low = graph.AddValue(parameter.name + ".low", Role::kOptimizerState);
  low->dtype = DType::kUInt16;
  low->shape = parameter.shape;
  low->has_shape = true;
  return low;
}

void ReadDirectly(Graph& graph, Value& parameter, const Node& adamw) {
  const std::vector<Use> uses = parameter.uses;
  for (const Use& use : uses) {
    if (use.node == &adamw) continue;
    Value* cast = use.node->out();
    graph.ReplaceUses(cast, &parameter);
    graph.RemoveNode(use.node);
    graph.RemoveValue(cast);
  }
  parameter.dtype = DType::kBFloat16;
  parameter.data = nullptr;  // float32; its pieces say where the bytes are
}

void Split(Graph& graph, Node& adamw, PassContext& context) {
  ReadDirectly(graph, *adamw.in(0), adamw);
  std::vector<Value*> inputs = adamw.inputs, outputs = adamw.outputs;
  inputs.push_back(AddLow(graph, *inputs[0]));
  outputs.push_back(graph.AddValue(outputs[0]->name + ".low"));
  context.Matched(ReplaceNode(graph, adamw, *adamw.schema, std::move(inputs), std::move(outputs), adamw.attributes));
}

}  // namespace

bool SplitMasters::Run(Graph& graph, PassContext& context) {
  std::vector<Node*> nodes;
  for (const auto& node : graph.nodes()) {
    if (Is(*node, "AdamW", "ai.weir")) nodes.push_back(node.get());
  }
  for (Node* node : nodes) {
    if (const std::string why = WhyNot(graph, *node); !why.empty()) {
      context.Missed(*node, why);
    } else {
      Split(graph, *node, context);
    }
  }
  return context.matches > 0;
}

}  // namespace weir
