#include "graph/error.h"
#include "graph_passes/lower_contrib.h"
#include "graph_passes/match.h"
#include "graph_passes/notices.h"
#include "graph_passes/parameters.h"

namespace weir {
namespace {

constexpr char kMicrosoft[] = "com.microsoft";
constexpr double kNormEpsilon = 1e-5, kSkipNormEpsilon = 1e-12;  // where a node says nothing

Value* Normalised(Builder& builder, Graph& graph, Value* x, Value* gamma, double epsilon) {
  return builder.Op("RmsNorm", {x, IsInitializer(gamma) ? AsParameter(graph, gamma) : gamma},
                    {{"epsilon", epsilon}});
}

// (x, skip, gamma, [beta,] bias) -> y, -, -, x + skip + bias.
bool LowerSkipNorm(Graph& graph, Node& node, bool simplified) {
  Builder builder = At(graph, node);
  const double epsilon = node.attributes.Float("epsilon", kSkipNormEpsilon);
  Value* sum = builder.Op("Add", {node.in(0), node.in(1)});
  if (Value* bias = node.in(simplified ? 3 : 4)) sum = builder.Op("Add", {sum, bias});
  for (size_t o : {1, 2}) {
    WEIR_CHECK(
        node.out(o) == nullptr || node.out(o)->uses.empty(), ErrorCode::kUnsupportedOp,
        NameOf(node),
        ": its mean and variance outputs are read; only outputs 0 and 3 have a meaning here");
  }
  Value* y = simplified ? Normalised(builder, graph, sum, node.in(2), epsilon)
                        : builder.Op("LayerNormalization", {sum, node.in(2), node.in(3)},
                                     {{"axis", int64_t{-1}}, {"epsilon", epsilon}});
  if (node.out(0) != nullptr) graph.ReplaceUses(node.out(0), y);
  if (node.out(3) != nullptr) graph.ReplaceUses(node.out(3), sum);
  return true;
}

bool LowerNorm(Graph& graph, Node& node) {
  const Value* x = node.in(0);
  const int64_t axis = node.attributes.Int("axis", -1);
  WEIR_CHECK(axis == -1 || (x->has_shape && axis + 1 == static_cast<int64_t>(x->shape.size())),
             ErrorCode::kUnsupportedOp, NameOf(node), ": axis ", axis,
             " is not the last; only norms over the last axis are known");
  Builder builder = At(graph, node);
  graph.ReplaceUses(node.out(0), Normalised(builder, graph, node.in(0), node.in(1),
                                            node.attributes.Float("epsilon", kNormEpsilon)));
  return true;
}

// x * sigmoid(alpha x), and the two gelus.
bool LowerGelu(Graph& graph, Node& node) {
  Builder builder = At(graph, node);
  Value* x = node.in(0);
  if (node.in(1) != nullptr) x = builder.Op("Add", {x, node.in(1)});
  Value* y = nullptr;
  if (node.op() == "QuickGelu") {
    const double alpha = node.attributes.Float("alpha", 1.702);
    Value* inside =
        alpha == 1 ? x : builder.Op("Mul", {x, builder.Float(static_cast<float>(alpha))});
    y = builder.Op("Mul", {x, builder.Op("Sigmoid", {inside})});
  } else {
    y = builder.Op("Gelu", {x},
                   {{"approximate", std::string(node.op() == "FastGelu" ? "tanh" : "none")}});
  }
  graph.ReplaceUses(node.out(0), y);
  return true;
}

bool LowerGatedAdd(Graph& graph, Node& node) {
  Builder builder = At(graph, node);
  Value* gated = builder.Op("Mul", {node.in(1), node.in(2)});
  graph.ReplaceUses(node.out(0), builder.Op("Add", {node.in(0), gated}));
  return true;
}

bool LowerFusedMatMul(Graph& graph, Node& node) {
  const Attributes& a = node.attributes;
  if (a.Int("transBatchA", 0) != 0 || a.Int("transBatchB", 0) != 0) return false;
  Builder builder = At(graph, node);
  Value* operands[2] = {node.in(0), node.in(1)};
  for (int i = 0; i < 2; ++i) {
    if (a.Int(i == 0 ? "transA" : "transB", 0) == 0) continue;
    if (!operands[i]->has_shape || operands[i]->shape.size() < 2) return false;
    std::vector<int64_t> perm;
    for (size_t axis = 0; axis < operands[i]->shape.size(); ++axis)
      perm.push_back(static_cast<int64_t>(axis));
    std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
    operands[i] = builder.Op("Transpose", {operands[i]}, {{"perm", perm}});
  }
  Value* y = builder.Op("MatMul", {operands[0], operands[1]});
  const double alpha = a.Float("alpha", 1);
  if (alpha != 1) y = builder.Op("Mul", {y, builder.Float(static_cast<float>(alpha))});
  graph.ReplaceUses(node.out(0), y);
  return true;
}

// Microsoft's (x, position_ids, cos, sin) is ONNX's (x, cos, sin, position_ids).
bool LowerRotaryEmbedding(Graph& graph, Node& node) {
  WEIR_CHECK(node.attributes.Float("scale", 1) == 1, ErrorCode::kUnsupportedOp, NameOf(node),
             ": scale ", node.attributes.Float("scale", 1), " has no equal in ai.onnx");
  if (FindOp("RotaryEmbedding", "") == nullptr) return false;
  Attributes attributes;
  for (const char* name : {"interleaved", "num_heads", "rotary_embedding_dim"}) {
    if (node.attributes.Int(name, 0) != 0) attributes.Set(name, node.attributes.Int(name, 0));
  }
  Builder builder = At(graph, node);
  graph.ReplaceUses(
      node.out(0),
      builder.Op("RotaryEmbedding", {node.in(0), node.in(2), node.in(3), node.in(1)}, attributes));
  return true;
}

bool Lower(Graph& graph, Node& node) {
  const std::string& op = node.op();
  if (op == "SkipSimplifiedLayerNormalization") return LowerSkipNorm(graph, node, true);
  if (op == "SkipLayerNormalization") return LowerSkipNorm(graph, node, false);
  if (op == "SimplifiedLayerNormalization") return LowerNorm(graph, node);
  if (op == "GatedAdd") return LowerGatedAdd(graph, node);
  if (op == "FusedMatMul") return LowerFusedMatMul(graph, node);
  if (op == "RotaryEmbedding") return LowerRotaryEmbedding(graph, node);
  if (op == "FastGelu" || op == "QuickGelu" || op == "BiasGelu") return LowerGelu(graph, node);
  return false;
}

}  // namespace

std::string LowerContribMath::doc() const {
  return "y, , , s = SkipSimplifiedLayerNormalization(x, skip, gamma)  ==>  s = Add(x, skip); y = "
         "RmsNorm(s, gamma)\n"
         "SimplifiedLayerNormalization(x, gamma)  ==>  RmsNorm(x, gamma)\n"
         "GatedAdd(r, s, g)  ==>  Add(r, Mul(s, g))\n"
         "QuickGelu(x)  ==>  Mul(x, Sigmoid(Mul(x, alpha)));  FastGelu, BiasGelu  ==>  Gelu\n"
         "FusedMatMul  ==>  Transpose, MatMul, Mul;  RotaryEmbedding  ==>  ai.onnx's order of "
         "inputs";
}

bool LowerContribMath::Run(Graph& graph, PassContext& context) {
  std::vector<Node*> nodes;
  for (const auto& node : graph.nodes()) {
    if (node->schema->domain == kMicrosoft) nodes.push_back(node.get());
  }
  for (Node* node : nodes) {
    if (Lower(graph, *node)) context.Matched(*node);
  }
  if (context.matches > 0) graph.RemoveDeadNodes();
  return context.matches > 0;
}

}  // namespace weir
