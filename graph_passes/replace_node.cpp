#include "graph_passes/replace_node.h"

#include "graph/op_schema.h"

namespace weir {

Node& ReplaceNode(Graph& graph, Node& old, const OpSchema& schema, std::vector<Value*> inputs, std::vector<Value*> outputs,
                  Attributes attributes) {
  const auto next = std::next(old.self);
  Node* before = next == graph.nodes().end() ? nullptr : next->get();
  std::string source = old.source;
  const Phase phase = old.phase;
  graph.RemoveNode(&old);
  Node* node = graph.AddNode(schema, std::move(inputs), std::move(outputs), std::move(attributes), before);
  node->source = std::move(source);
  node->phase = phase;
  InferNode(*node);
  return *node;
}

}  // namespace weir
