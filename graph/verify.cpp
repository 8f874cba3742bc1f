#include <algorithm>
#include <unordered_set>

#include "graph/error.h"
#include "graph/graph.h"
#include "graph/op_schema.h"

namespace weir {

static void Require(bool condition, const Node* node, const std::string& what) {
  if (condition) return;
  throw Error(ErrorCode::kInternal,
              StrCat("broken graph: ", what, node ? StrCat(" at ", node->op(), " ", node->source) : ""));
}

void VerifyGraph(const Graph& graph) {
  std::unordered_set<const Value*> owned, defined;
  for (const auto& value : graph.values()) {
    owned.insert(value.get());
    if (value->role != Role::kActivation) {
      Require(value->producer == nullptr, value->producer, "leaf '" + value->name + "' is produced");
      defined.insert(value.get());
    }
    for (const Use& use : value->uses) {
      const auto slot = static_cast<size_t>(use.index);
      Require(slot < use.node->inputs.size() && use.node->inputs[slot] == value.get(), use.node,
              "use list of '" + value->name + "' is stale");
    }
  }
  for (const auto& node : graph.nodes()) {
    for (size_t i = 0; i < node->inputs.size(); ++i) {
      const Value* input = node->inputs[i];
      if (input == nullptr) continue;
      Require(owned.contains(input), node.get(), "input is not owned by the graph");
      Require(defined.contains(input), node.get(), "'" + input->name + "' is used before it is made");
      Require(std::count_if(input->uses.begin(), input->uses.end(),
                            [&](const Use& use) {
                              return use.node == node.get() && use.index == static_cast<int>(i);
                            }) == 1,
              node.get(), "'" + input->name + "' does not know this use");
    }
    for (const Value* output : node->outputs) {
      if (output == nullptr) continue;
      Require(owned.contains(output), node.get(), "output is not owned by the graph");
      Require(output->producer == node.get(), node.get(), "'" + output->name + "' has another producer");
      defined.insert(output);
    }
  }
  for (const Value* output : graph.outputs) {
    Require(defined.contains(output), nullptr, "graph output '" + output->name + "' is not made");
  }
}

std::unique_ptr<Graph> Clone(const Graph& graph) {
  auto copy = std::make_unique<Graph>();
  copy->name = graph.name;
  copy->notices = graph.notices;
  copy->stripped = graph.stripped;
  copy->initializers = graph.initializers;
  std::unordered_map<const Value*, Value*> map;
  for (const auto& value : graph.values()) {
    Value* twin = copy->AddValue(value->name, value->role);
    twin->dtype = value->dtype;
    twin->shape = value->shape;
    twin->has_shape = value->has_shape;
    twin->data = value->data;
    twin->content = value->content;
    if (value->parameter) twin->parameter = std::make_unique<ParameterInfo>(*value->parameter);
    map[value.get()] = twin;
  }
  const auto mapped = [&](const std::vector<Value*>& list) {
    std::vector<Value*> result;
    for (const Value* value : list) result.push_back(value ? map.at(value) : nullptr);
    return result;
  };
  for (const auto& node : graph.nodes()) {
    Node* twin = copy->AddNode(*node->schema, mapped(node->inputs), mapped(node->outputs),
                               node->attributes);
    twin->source = node->source;
    twin->phase = node->phase;
  }
  copy->inputs = mapped(graph.inputs);
  copy->outputs = mapped(graph.outputs);
  return copy;
}

}  // namespace weir
