#include "graph_passes/flatten_router.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "graph_passes/match.h"

namespace weir {
namespace {

bool IsOneOf(const Node& node, std::initializer_list<const char*> ops) {
  return std::any_of(ops.begin(), ops.end(), [&node](const char* op) { return node.op() == op; });
}

bool IsBatched(const Value* value) {
  return value != nullptr && value->has_shape && value->shape.size() == 3 &&
         value->shape.back().IsConstant();
}

// [B,S,C] -> [N,C].
bool FlattensTokens(const Node& node) {
  return Is(node, "Reshape") && IsBatched(node.in(0)) && node.out(0)->has_shape &&
         node.out(0)->shape.size() == 2 && node.in(0)->shape.back() == node.out(0)->shape.back();
}

bool OnLastAxis(const Node& node, int64_t axis) {
  const auto normal = NormalAxis(axis, node.in(0)->shape.size());
  return normal && *normal + 1 == static_cast<int64_t>(node.in(0)->shape.size());
}

// Broadcasts along the last axis only: the same operand serves rows and batches of rows.
bool IsRowOperand(const Value* value) { return value->has_shape && value->shape.size() <= 1; }

// Ops that treat every token by itself.
bool IsRowWise(const Node& node) {
  if (IsOneOf(node, {"Linear", "Sigmoid", "Tanh", "Relu", "Softplus", "Exp", "Cast"})) return true;
  if (IsOneOf(node, {"Softmax", "TopK", "GatherElements"})) {
    return OnLastAxis(node, node.attributes.Int("axis", node.op() == "GatherElements" ? 0 : -1));
  }
  if (IsOneOf(node, {"ReduceSum", "ReduceMax"})) {
    const auto axes = IntsOf(node, 1, "axes");
    return axes && axes->size() == 1 && OnLastAxis(node, (*axes)[0]) &&
           node.attributes.Int("keepdims", 1) == 1;
  }
  if (!IsOneOf(node, {"Add", "Sub", "Mul", "Div"})) return false;
  return IsRowOperand(node.in(0)) || IsRowOperand(node.in(1)) || IsOneOf(node, {"Mul", "Div"});
}

class Flattener {
 public:
  explicit Flattener(Graph& graph) : graph_(graph) {}

  // `value` [B,S,C] as [N,C]; work above it is redone on rows.
  Value* Flat(Value* value) {
    if (!IsBatched(value)) return value;
    if (const auto it = flat_.find(value); it != flat_.end()) return it->second;
    Node* node = value->producer;
    if (node != nullptr && IsRowWise(*node) && IsBatched(node->in(0))) {
      FlattenNode(*node);
      return flat_.at(value);
    }
    Node* first = FirstUse(value);
    Builder builder = At(graph_, *first);
    return flat_[value] =
               builder.Op("Reshape", {value, builder.Ints({-1, value->shape.back().Constant()})});
  }

 private:
  void FlattenNode(Node& node) {
    std::vector<Value*> inputs;
    for (Value* input : node.inputs) inputs.push_back(Flat(input));
    Attributes attributes = node.attributes;
    if (attributes.Has("axis")) attributes.Set("axis", int64_t{1});
    Builder builder = At(graph_, node);
    if (IsOneOf(node, {"ReduceSum", "ReduceMax"})) inputs[1] = builder.Ints({1});
    const auto outputs =
        builder.Ops(node.op(), inputs, static_cast<int>(node.outputs.size()), attributes);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (node.outputs[i] != nullptr) flat_[node.outputs[i]] = outputs[i];
    }
  }

  // A Reshape of `value` goes where its first reader stands.
  Node* FirstUse(const Value* value) const {
    std::unordered_set<const Node*> users;
    for (const Use& use : value->uses) users.insert(use.node);
    for (const auto& node : graph_.nodes()) {
      if (users.contains(node.get())) return node.get();
    }
    return nullptr;
  }

  Graph& graph_;
  std::unordered_map<Value*, Value*> flat_;
};

// Reshapes between a router's scores and the experts.
std::vector<Node*> RouterReshapes(Graph& graph) {
  std::unordered_set<Node*> seen;
  std::vector<Node*> stack, found;
  const auto visit = [&](Value* value) {
    if (value != nullptr && value->producer != nullptr && seen.insert(value->producer).second)
      stack.push_back(value->producer);
  };
  for (const auto& node : graph.nodes()) {
    if (node->op() != "Experts") continue;
    for (size_t i : {1, 2}) visit(node->in(i));
  }
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    if (FlattensTokens(*node) && node->in(0)->producer != nullptr &&
        IsRowWise(*node->in(0)->producer))
      found.push_back(node);
    if (IsOneOf(*node,
                {"RmsNorm", "LayerNormalization", "Experts", "Attention", "Embedding", "Linear"}))
      continue;
    for (Value* input : node->inputs) visit(input);
  }
  return found;
}

}  // namespace

std::string FlattenRouter::doc() const {
  return "TopK(Reshape(Linear(x [B,S,H], w), [-1,E]))  ==>  TopK(Linear(Reshape(x, [-1,H]), w))\n"
         "Experts(.., Reshape(ids), Reshape(weights)) of TopK on [B,S,E]  ==>  TopK on [N,E]";
}

bool FlattenRouter::Run(Graph& graph, PassContext& context) {
  Flattener flattener(graph);
  for (Node* reshape : RouterReshapes(graph)) {
    context.Matched(*reshape);
    graph.ReplaceUses(reshape->out(0), flattener.Flat(reshape->in(0)));
  }
  if (context.matches > 0) {
    graph.SortTopologically();
    graph.RemoveDeadNodes();
  }
  return context.matches > 0;
}

}  // namespace weir
