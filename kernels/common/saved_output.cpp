#include "kernels/common/saved_output.h"

#include "graph/op_schema.h"

namespace weir {

Value* SavedOutput(GradientContext& g, size_t index, const char* suffix) {
  Node& node = g.node;
  if (node.outputs.size() <= index) node.outputs.resize(index + 1, nullptr);
  if (node.outputs[index] == nullptr) {
    Value* saved = g.builder.graph().AddValue(StrCat(g.out(0)->name, ".", suffix));
    saved->producer = &node;
    saved->producer_index = static_cast<int>(index);
    node.outputs[index] = saved;
    InferNode(node);
  }
  return node.outputs[index];
}

void DropOutput(Graph& graph, Value* value) {
  value->producer->outputs[static_cast<size_t>(value->producer_index)] = nullptr;
  value->producer = nullptr;
  graph.RemoveValue(value);
}

}  // namespace weir
