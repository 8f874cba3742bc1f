#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph/error.h"
#include "graph/graph.h"
#include "graph/op_schema.h"

namespace weir {

namespace {

[[noreturn]] void Broken(const Node* node, const std::string& what) {
  throw Error(ErrorCode::kInternal,
              StrCat("broken graph: ", what, node ? StrCat(" at ", node->op(), " ", node->source) : ""));
}

bool Knows(const Value& value, const Node* node, size_t slot) {
  return std::any_of(value.uses.begin(), value.uses.end(), [&](const Use& use) {
    return use.node == node && use.index == static_cast<int>(slot);
  });
}

// Every use stands in its node, once. Returns how many there are.
int64_t CheckUses(const Value& value) {
  for (const Use& use : value.uses) {
    const auto slot = static_cast<size_t>(use.index);
    if (slot >= use.node->inputs.size() || use.node->inputs[slot] != &value)
      Broken(use.node, "use list of '" + value.name + "' is stale");
  }
  if (value.uses.size() > 1) {
    std::vector<std::pair<const Node*, int>> sorted;
    for (const Use& use : value.uses) sorted.emplace_back(use.node, use.index);
    std::sort(sorted.begin(), sorted.end());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice != sorted.end()) Broken(twice->first, "'" + value.name + "' knows one use twice");
  }
  return static_cast<int64_t>(value.uses.size());
}

}  // namespace

// Linear in the graph, however many uses one value has: as all known uses are true and different, their number tells
// whether one is missing.
void VerifyGraph(const Graph& graph) {
  std::unordered_map<const Value*, bool> defined;  // of the graph's own values
  defined.reserve(graph.values().size());
  int64_t known = 0, used = 0;
  for (const auto& value : graph.values()) {
    const bool leaf = value->role != Role::kActivation;
    if (leaf && value->producer != nullptr) Broken(value->producer, "leaf '" + value->name + "' is produced");
    defined.emplace(value.get(), leaf);
    known += CheckUses(*value);
  }
  for (const auto& node : graph.nodes()) {
    for (const Value* input : node->inputs) {
      if (input == nullptr) continue;
      const auto it = defined.find(input);
      if (it == defined.end()) Broken(node.get(), "input is not owned by the graph");
      if (!it->second) Broken(node.get(), "'" + input->name + "' is used before it is made");
      ++used;
    }
    for (const Value* output : node->outputs) {
      if (output == nullptr) continue;
      const auto it = defined.find(output);
      if (it == defined.end()) Broken(node.get(), "output is not owned by the graph");
      if (output->producer != node.get()) Broken(node.get(), "'" + output->name + "' has another producer");
      it->second = true;
    }
  }
  for (const Value* output : graph.outputs) {
    const auto it = defined.find(output);
    if (it == defined.end() || !it->second) Broken(nullptr, "graph output '" + output->name + "' is not made");
  }
  if (known == used) return;
  for (const auto& node : graph.nodes()) {
    for (size_t i = 0; i < node->inputs.size(); ++i) {
      const Value* input = node->inputs[i];
      if (input != nullptr && !Knows(*input, node.get(), i))
        Broken(node.get(), "'" + input->name + "' does not know this use");
    }
  }
  Broken(nullptr, "values know uses of nodes outside the graph");
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
