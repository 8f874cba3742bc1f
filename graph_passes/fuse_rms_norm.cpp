#include "graph_passes/fuse_rms_norm.h"

#include "graph_passes/match.h"
#include "graph_passes/parameters.h"
#include "graph_passes/shape_tensor.h"

namespace weir {
namespace {

struct Norm {
  Value* x = nullptr;
  double epsilon = 0;
};

// sqrt(mean(x*x, last axis) + epsilon)
std::optional<Norm> MatchRoot(const Value* value) {
  const Node* sqrt = Made(value, "Sqrt");
  const Node* add = sqrt ? Made(sqrt->in(0), "Add") : nullptr;
  const Operands sum = add ? SplitOperands(*add, "ReduceMean") : Operands{};
  if (!sum) return std::nullopt;
  const auto epsilon = ScalarOf(sum.rest);
  const Node* square = Made(sum.made->in(0), "Mul");
  const auto axes = IntsOf(*sum.made, 1, "axes");
  if (!epsilon || !square || square->in(0) != square->in(1) || !axes || axes->size() != 1)
    return std::nullopt;
  Value* x = square->in(0);
  if (!x->has_shape || sum.made->attributes.Int("keepdims", 1) != 1) return std::nullopt;
  const auto axis = NormalAxis((*axes)[0], x->shape.size());
  if (!axis || *axis + 1 != static_cast<int64_t>(x->shape.size())) return std::nullopt;
  return Norm{x, *epsilon};
}

// x * 1/sqrt(...) or x / sqrt(...)
std::optional<Norm> MatchNorm(const Node& node) {
  if (Is(node, "Div")) {
    const auto norm = MatchRoot(node.in(1));
    return norm && norm->x == node.in(0) ? norm : std::nullopt;
  }
  for (size_t i = 0; Is(node, "Mul") && i < 2; ++i) {
    const Node* reciprocal = Made(node.in(i), "Reciprocal");
    const auto norm = reciprocal ? MatchRoot(reciprocal->in(0)) : std::nullopt;
    if (norm && norm->x == node.in(1 - i)) return norm;
  }
  return std::nullopt;
}

// Whether `value` [H] depends on weights and constants only, a few nodes deep (1 + w).
bool IsGamma(const Value* value, const Dim& width, int depth = 0) {
  if (!value->has_shape || depth > 4) return false;
  if (depth == 0 && (value->shape.size() != 1 || !(value->shape[0] == width))) return false;
  if (value->role == Role::kParameter || value->role == Role::kConstant) return true;
  if (value->producer == nullptr || value->role != Role::kActivation) return false;
  for (const Value* input : value->producer->inputs) {
    if (input != nullptr && !IsGamma(input, width, depth + 1)) return false;
  }
  return !value->producer->inputs.empty();
}

// gamma, with the file's tensors behind it trained.
Value* Trained(Graph& graph, Value* gamma) {
  if (IsInitializer(gamma)) return AsParameter(graph, gamma);
  if (gamma->producer == nullptr) return gamma;
  Node* node = gamma->producer;
  for (size_t i = 0; i < node->inputs.size(); ++i) {
    Value* input = node->inputs[i];
    if (input == nullptr || (IsInitializer(input) && input->shape.empty())) continue;
    Value* trained = Trained(graph, input);
    if (trained != input) graph.SetInput(node, i, trained);
  }
  return gamma;
}

Value* Ones(Builder& builder, const Dim& width) {
  const std::vector<float> ones(static_cast<size_t>(width.Constant()), 1.0f);
  return builder.graph().AddConstant("ones", TensorData::FromFloats({width.Constant()}, ones));
}

Value* Emit(Graph& graph, Node& before, Value* x, Value* gamma, double epsilon) {
  Builder builder = At(graph, before);
  return builder.Op("RmsNorm", {x, Trained(graph, gamma)}, {{"epsilon", epsilon}});
}

bool FuseChain(Graph& graph, Node& node) {
  const auto norm = MatchNorm(node);
  if (!norm || !norm->x->shape.back().IsConstant()) return false;
  const Dim width = norm->x->shape.back();
  Value* normalized = node.out();
  Node* user = normalized->uses.size() == 1 && !graph.IsOutput(normalized)
                   ? normalized->uses[0].node
                   : nullptr;
  if (user != nullptr && Is(*user, "Mul")) {
    Value* gamma = OtherInput(*user, normalized);
    if (gamma != nullptr && IsGamma(gamma, width)) {
      graph.ReplaceUses(user->out(), Emit(graph, *user, norm->x, gamma, norm->epsilon));
      return true;
    }
  }
  Builder builder = At(graph, node);
  graph.ReplaceUses(normalized, Emit(graph, node, norm->x, Ones(builder, width), norm->epsilon));
  return true;
}

// RMSNormalization, SimplifiedLayerNormalization and SkipSimplifiedLayerNormalization.
bool FuseOp(Graph& graph, Node& node, PassContext& context) {
  const std::string& op = node.op();
  const bool skip = op == "SkipSimplifiedLayerNormalization";
  if (!skip && op != "RMSNormalization" && op != "SimplifiedLayerNormalization") return false;
  Value *x = node.in(0), *gamma = node.in(skip ? 2 : 1);
  Builder builder = At(graph, node);
  if (skip) {
    x = builder.Op("Add", {x, node.in(1)});
    if (node.in(3) != nullptr) {
      Value* bias = IsInitializer(node.in(3)) ? AsParameter(graph, node.in(3)) : node.in(3);
      x = builder.Op("Add", {x, bias});
    }
  }
  const auto axis =
      x->has_shape ? NormalAxis(node.attributes.Int("axis", -1), x->shape.size()) : std::nullopt;
  if (!axis || *axis + 1 != static_cast<int64_t>(x->shape.size()) ||
      !IsGamma(gamma, x->shape.back())) {
    context.Missed(node, "only norms over the last axis with a weight of its length are fused");
    return false;
  }
  for (size_t i = 1; i < node.outputs.size(); ++i) {
    const bool sum = skip && i == 3;
    if (node.outputs[i] == nullptr || sum || node.outputs[i]->uses.empty()) continue;
    context.Missed(node, "its mean or inverse deviation output is used");
    return false;
  }
  const double epsilon = node.attributes.Float("epsilon", skip ? 1e-12 : 1e-5);
  graph.ReplaceUses(node.out(), Emit(graph, node, x, gamma, epsilon));
  if (skip && node.out(3) != nullptr) graph.ReplaceUses(node.out(3), x);
  return true;
}

}  // namespace

std::string FuseRmsNorm::doc() const {
  return "m = ReduceMean(Mul(x, x), [-1]);  y = gamma * (x * Reciprocal(Sqrt(m + epsilon)))\n"
         "  ==> y = RmsNorm<epsilon>(x, gamma)\n"
         "gamma may be computed from weights (1 + w); without one it is ones.";
}

bool FuseRmsNorm::Run(Graph& graph, PassContext& context) {
  for (const auto& node : graph.nodes()) {
    if (node->out(0) == nullptr || !(FuseChain(graph, *node) || FuseOp(graph, *node, context)))
      continue;
    context.Matched(*node);
  }
  graph.RemoveDeadNodes();
  return context.matches > 0;
}

}  // namespace weir
