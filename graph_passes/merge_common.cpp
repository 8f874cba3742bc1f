#include "graph_passes/merge_common.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "graph_passes/match.h"
#include "graph_passes/parameters.h"

namespace weir {
namespace {

constexpr int64_t kMaxSharedElements = 1 << 14;

size_t Mix(size_t hash, size_t value) {
  return (hash ^ value) * 0x9E3779B97F4A7C15ull + (hash >> 29);
}

// What two values must agree on to be one constant; empty when the value is not shared by value.
std::string KeyOf(const Value& value) {
  if (value.role == Role::kConstant && value.data != nullptr &&
      value.data->elements() <= kMaxSharedElements &&
      !(IsInitializer(&value) && value.data->elements() > 1)) {
    const auto bytes = value.data->bytes();
    return std::string(DTypeName(value.dtype)) + ToString(value.shape) +
           std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  // Launch dims: whatever computes [batch, 1, sequence] computes the same.
  if (value.role == Role::kActivation && value.content && value.has_shape &&
      value.shape.size() <= 1 && !IsFloat(value.dtype) && IsKnown(*value.content)) {
    return std::string(DTypeName(value.dtype)) + ToString(value.shape) + "=" +
           ToString(*value.content);
  }
  return "";
}

size_t HashOf(const Node& node) {
  size_t hash = std::hash<const void*>()(node.schema);
  for (const Value* input : node.inputs) hash = Mix(hash, std::hash<const void*>()(input));
  for (const auto& [name, value] : node.attributes) {
    hash = Mix(hash, std::hash<std::string>()(name));
    if (const auto* number = std::get_if<int64_t>(&value))
      hash = Mix(hash, static_cast<size_t>(*number));
    if (const auto* list = std::get_if<std::vector<int64_t>>(&value)) {
      for (int64_t element : *list) hash = Mix(hash, static_cast<size_t>(element));
    }
  }
  return Mix(hash, node.outputs.size());
}

bool IsMergeable(const Node& node) {
  if (node.schema->has_side_effect || node.op().starts_with("Random") || node.op() == "Dropout")
    return false;
  for (const auto& [name, value] : node.attributes) {
    if (std::holds_alternative<GraphPtr>(value)) return false;
  }
  return std::none_of(node.outputs.begin(), node.outputs.end(),
                      [](const Value* v) { return v == nullptr; });
}

bool IsCommutative(const Node& node) {
  static const char* const ops[] = {"Add", "Mul", "And", "Or", "Xor", "Equal", "Min", "Max"};
  return node.inputs.size() == 2 && node.schema->domain.empty() &&
         std::any_of(std::begin(ops), std::end(ops),
                     [&](const char* op) { return node.op() == op; });
}

class Merger {
 public:
  Merger(Graph& graph, PassContext& context) : graph_(graph), context_(context) {}

  void MergeValue(Value* value) {
    const std::string key = KeyOf(*value);
    if (key.empty()) return;
    Value* first = values_.try_emplace(key, value).first->second;
    if (first == value || (value->uses.empty() && !graph_.IsOutput(value))) return;
    graph_.ReplaceUses(value, first);
    ++context_.matches;
  }

  // Activations before parameters before constants; among activations the one nearer to the inputs
  // of the graph, which does not depend on how the file orders independent nodes.
  void OrderInputs(Node& node) {
    const auto rank = [this](const Value* v) {
      if (v->role == Role::kConstant) return std::pair<int64_t, int64_t>{int64_t{1} << 62, 0};
      if (v->role == Role::kParameter) return std::pair<int64_t, int64_t>{int64_t{1} << 61, 0};
      const auto it = depth_.find(v->producer);
      return it == depth_.end() ? std::pair<int64_t, int64_t>{0, 0} : it->second;
    };
    if (!IsCommutative(node) || rank(node.inputs[0]) <= rank(node.inputs[1])) return;
    Value *a = node.inputs[0], *b = node.inputs[1];
    graph_.SetInput(&node, 0, b);
    graph_.SetInput(&node, 1, a);
  }

  void SetDepth(const Node& node) {
    int64_t depth = 0;
    for (const Value* input : node.inputs) {
      if (input == nullptr || input->producer == nullptr) continue;
      depth = std::max(depth, depth_[input->producer].first);
    }
    depth_[&node] = {depth + 1, position_++};
  }

  void MergeNode(Node& node) {
    if (!IsMergeable(node)) return;
    auto [begin, end] = nodes_.equal_range(HashOf(node));
    for (auto it = begin; it != end; ++it) {
      const Node& first = *it->second;
      if (first.schema != node.schema || first.inputs != node.inputs ||
          first.outputs.size() != node.outputs.size() ||
          !Equal(first.attributes, node.attributes)) {
        continue;
      }
      for (size_t i = 0; i < node.outputs.size(); ++i)
        graph_.ReplaceUses(node.outputs[i], first.outputs[i]);
      ++context_.matches;
      return;
    }
    nodes_.emplace(HashOf(node), &node);
  }

 private:
  Graph& graph_;
  PassContext& context_;
  std::unordered_map<std::string, Value*> values_;
  std::unordered_multimap<size_t, Node*> nodes_;
  std::unordered_map<const Node*, std::pair<int64_t, int64_t>> depth_;
  int64_t position_ = 0;
};

}  // namespace

std::string MergeCommon::doc() const {
  return "a = f(x);  b = f(x) ==> b = a;  Mul(constant, x) ==> Mul(x, constant)\n"
         "Integer values with the same known launch dims are one value, however they were "
         "computed.";
}

bool MergeCommon::Run(Graph& graph, PassContext& context) {
  Merger merger(graph, context);
  for (Value* constant : graph.ValuesWithRole(Role::kConstant)) merger.MergeValue(constant);
  for (const auto& node : graph.nodes()) {
    const bool unused = std::all_of(
        node->outputs.begin(), node->outputs.end(),
        [&](const Value* v) { return v == nullptr || (v->uses.empty() && !graph.IsOutput(v)); });
    merger.SetDepth(*node);
    if (unused) continue;
    merger.OrderInputs(*node);
    for (Value* output : node->outputs) {
      if (output != nullptr) merger.MergeValue(output);
    }
    merger.MergeNode(*node);
  }
  graph.RemoveDeadNodes();
  return context.matches > 0;
}

}  // namespace weir
