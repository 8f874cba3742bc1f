#include "graph_passes/router_losses.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/add_loss.h"
#include "graph_passes/match.h"

namespace weir {
namespace {

constexpr int64_t kOnnxFloat = 1;

// One layer's gate: the product over all experts, and what the model makes probabilities of it with.
struct Gate {
  Node* experts = nullptr;
  Value* logits = nullptr;  // [N,E]
  Value* scores = nullptr;  // Softmax or Sigmoid of them, where the model has it
  bool sigmoid = false;
};

bool IsOnExperts(const Node& node) {
  const auto axis = NormalAxis(node.attributes.Int("axis", -1), node.in(0)->shape.size());
  return axis && *axis + 1 == static_cast<int64_t>(node.in(0)->shape.size());
}

// The Linear of the router, above the chosen ids. Nullptr when several or none has a column per expert.
Value* FindLogits(const Node& experts) {
  const Dim& count = experts.in(3)->shape[0];
  std::set<const Value*> seen;
  std::vector<Value*> stack = {experts.in(1)};
  Value* logits = nullptr;
  while (!stack.empty()) {
    Value* value = stack.back();
    stack.pop_back();
    if (value == nullptr || value->producer == nullptr || !seen.insert(value).second) continue;
    if (value->producer->op() != "Linear") {
      stack.insert(stack.end(), value->producer->inputs.begin(), value->producer->inputs.end());
    } else if (logits != nullptr || value->shape.size() != 2 || !(value->shape[1] == count)) {
      return nullptr;
    } else {
      logits = value;
    }
  }
  return logits;
}

// Fills `gate`; returns why its probabilities are not defined, or "".
std::string ReadGate(Node& experts, const RouterLossOptions& options, Gate& gate) {
  gate.experts = &experts;
  gate.logits = FindLogits(experts);
  if (gate.logits == nullptr) return "its ids do not follow from one product with a column per expert";
  for (const Use& use : gate.logits->uses) {
    Node& node = *use.node;
    const bool scores = (Is(node, "Softmax") && IsOnExperts(node)) || Is(node, "Sigmoid");
    if (!scores && !Is(node, "TopK")) {
      return StrCat("its gate's product '", gate.logits->name, "' goes through ", node.op(), "; probabilities are defined for Softmax, Sigmoid and TopK of it");
    }
    if (!scores) continue;
    if (gate.scores != nullptr) return "its router makes two kinds of scores";
    gate.scores = node.out();
    gate.sigmoid = Is(node, "Sigmoid");
  }
  if (gate.sigmoid && options.z != 0) return "its router scores with Sigmoid; --z-loss is defined for softmax routers";
  return "";
}

std::vector<Gate> FindGates(const Graph& graph, const RouterLossOptions& options) {
  std::vector<Gate> gates;
  std::string refused;
  for (const auto& node : graph.nodes()) {
    if (!Is(*node, "Experts", "ai.weir")) continue;
    const std::string why = ReadGate(*node, options, gates.emplace_back());
    if (!why.empty()) refused += StrCat("\n  ", node->source, ": ", why);
  }
  WEIR_CHECK(refused.empty(), ErrorCode::kUnsupportedOp, "router losses are not defined for these layers; leave --balance-loss and --z-loss out:", refused);
  WEIR_CHECK(!gates.empty(), ErrorCode::kUnsupportedOp, "--balance-loss or --z-loss was given, but the graph has no Experts: no mixture of experts "
             "was recognised; see the misses of fuse_experts in passes.log");
  const Dim experts = gates[0].logits->shape[1];
  for (const Gate& gate : gates) {
    WEIR_CHECK(options.balance == 0 || gate.logits->shape[1] == experts, ErrorCode::kUnsupportedOp, "--balance-loss is a sum over the experts of all layers "
               "together, but layers have ", ToString(experts), " and ", ToString(gate.logits->shape[1]), " experts");
  }
  return gates;
}

Value* Times(Builder& b, Value* value, double factor) { return b.Op("Mul", {value, b.Float(static_cast<float>(factor))}); }

Value* Plus(Builder& b, Value* sum, Value* term) { return sum == nullptr ? term : b.Op("Add", {sum, term}); }

Value* MeanOverTokens(Builder& b, Value* value) {
  return b.Op("ReduceMean", {value, b.Ints({0})}, {{"keepdims", int64_t{0}}});
}

// [N,E]; each row sums to 1.
Value* Probabilities(Builder& b, const Gate& gate) {
  if (!gate.sigmoid) return gate.scores != nullptr ? gate.scores : b.Op("Softmax", {gate.logits}, {{"axis", int64_t{1}}});
  return b.Op("Div", {gate.scores, b.Op("ReduceSum", {gate.scores, b.Ints({1})})});
}

// [N,E]: 1 where the token goes.
Value* Routes(Builder& b, const Gate& gate) {
  Value* ids = gate.experts->in(1);
  Value* none = b.Op("Expand", {b.Float(0), b.Op("Shape", {gate.logits})});
  Value* ones = b.Op("Expand", {b.Float(1), b.Op("Shape", {ids})});
  return b.Op("ScatterElements", {none, ids, ones}, {{"axis", int64_t{1}}});
}

// Sums over layers of their means over tokens.
struct Sums {
  Value *probability = nullptr, *load = nullptr;  // [E]
  Value* square = nullptr;                        // scalar
};

void AddLayer(Builder& b, const Gate& gate, const RouterLossOptions& options, Sums& sums) {
  if (options.balance != 0) {
    sums.probability = Plus(b, sums.probability, MeanOverTokens(b, Probabilities(b, gate)));
    sums.load = Plus(b, sums.load, MeanOverTokens(b, Routes(b, gate)));
  }
  if (options.z != 0) {
    Value* lse = b.Op("ReduceLogSumExp", {gate.logits, b.Ints({1})}, {{"keepdims", int64_t{0}}});
    sums.square = Plus(b, sums.square, MeanOverTokens(b, b.Op("Mul", {lse, lse})));
  }
}

// The micro-batch's share of the step's valid labels, or of their weights.
Value* LabelShare(Builder& b, const Graph& graph, int64_t ignore_index) {
  Value *labels = graph.FindValue("labels"), *scale = graph.FindValue("loss_scale");
  WEIR_CHECK(labels != nullptr && scale != nullptr, ErrorCode::kInternal, "router losses need the inputs that add_loss makes");
  Value* valid = b.Op("Cast", {b.Op("Not", {b.Op("Equal", {labels, b.Int(ignore_index)})})}, {{"to", kOnnxFloat}});
  if (Value* weights = graph.FindValue(kTokenWeights)) valid = b.Op("Mul", {valid, weights});
  std::vector<int64_t> axes(labels->shape.size());
  for (size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<int64_t>(i);
  return b.Op("Mul", {b.Op("ReduceSum", {valid, b.Ints(axes)}, {{"keepdims", int64_t{0}}}), scale});
}

}  // namespace

bool RouterLosses::Run(Graph& graph, PassContext& context) {
  WEIR_CHECK(std::isfinite(options_.balance) && options_.balance >= 0, ErrorCode::kInvalidArgument, "--balance-loss=", options_.balance,
             " must be finite and not negative; 0 = off");
  WEIR_CHECK(std::isfinite(options_.z) && options_.z >= 0, ErrorCode::kInvalidArgument, "--z-loss=", options_.z,
             " must be finite and not negative; 0 = off");
  context.listed = true;
  const std::vector<Gate> gates = FindGates(graph, options_);
  Sums sums;
  for (const Gate& gate : gates) {
    Builder b = At(graph, *gate.experts);
    b.SetSource("router loss of " + gate.experts->source);
    b.SetStem("router_term");
    AddLayer(b, gate, options_, sums);
    context.Matched(*gate.experts);
    context.where.back() += StrCat(": gate '", gate.logits->name, "', ", gate.sigmoid ? "normalised sigmoid" : "softmax");
  }
  Builder b(graph);
  b.SetSource("router losses");
  b.SetStem("router_term");
  const auto layers = static_cast<double>(gates.size());
  Value* sum = nullptr;
  if (options_.balance != 0) {
    Value* products = b.Op("ReduceSum", {b.Op("Mul", {sums.probability, sums.load}), b.Ints({0})}, {{"keepdims", int64_t{0}}});
    const auto experts = static_cast<double>(gates[0].logits->shape[1].Constant());
    sum = Times(b, products, options_.balance * experts / (layers * layers));
  }
  if (options_.z != 0) sum = Plus(b, sum, Times(b, sums.square, options_.z / layers));
  Value* loss = b.Op("Mul", {sum, LabelShare(b, graph, ignore_index_)});
  ClaimName(graph, "router_loss");
  graph.Rename(loss, "router_loss");
  graph.outputs.push_back(loss);
  return true;
}

}  // namespace weir
