#include "graph_passes/fuse_linear.h"

#include "graph_passes/match.h"
#include "graph_passes/parameters.h"
#include "graph_passes/shape_tensor.h"

namespace weir {
namespace {

// A rank-2 weight of the file, possibly behind Transpose.
struct Weight {
  Value* tensor = nullptr;
  bool transposed = false;
};

bool IsWeight(const Value* value, size_t rank) {
  const bool weight = value != nullptr && (IsInitializer(value) || value->role == Role::kParameter);
  return weight && value->has_shape && value->shape.size() == rank;
}

std::optional<Weight> MatchWeight(Value* value) {
  if (IsWeight(value, 2)) return Weight{value, false};
  const Node* transpose = Made(value, "Transpose");
  if (transpose == nullptr || !IsWeight(transpose->in(0), 2)) return std::nullopt;
  const auto perm = transpose->attributes.Ints("perm", {1, 0});
  if (perm != std::vector<int64_t>{1, 0}) return std::nullopt;
  return Weight{transpose->in(0), true};
}

// The weight as [out, in] given whether `value` is used as [in, out].
Value* OutIn(Graph& graph, const Weight& weight, bool in_out) {
  if (weight.transposed == in_out) return AsParameter(graph, weight.tensor);
  return PermutedParameter(graph, weight.tensor, {1, 0});
}

Value* TrainedVector(Graph& graph, Value* bias) {
  return IsInitializer(bias) ? AsParameter(graph, bias) : bias;
}

bool IsBias(const Value* value, const Dim& width) {
  return IsWeight(value, 1) && value->shape[0] == width;
}

bool FuseMatMul(Graph& graph, Node& node) {
  const auto weight = MatchWeight(node.in(1));
  if (!weight || !node.in(0)->has_shape || node.in(0)->shape.size() < 2 || MatchWeight(node.in(0)))
    return false;
  Value* w = OutIn(graph, *weight, true);
  Builder builder = At(graph, node);
  Value* y = builder.Op("Linear", {node.in(0), w});
  const auto& uses = node.out()->uses;
  Node* add = uses.size() == 1 && !graph.IsOutput(node.out()) && Is(*uses[0].node, "Add")
                  ? uses[0].node
                  : nullptr;
  Value* bias = add ? OtherInput(*add, node.out()) : nullptr;
  if (bias == nullptr || !IsBias(bias, w->shape[0])) {
    graph.ReplaceUses(node.out(), y);
    return true;
  }
  Builder after = At(graph, *add);
  graph.ReplaceUses(add->out(), after.Op("Linear", {node.in(0), w, TrainedVector(graph, bias)}));
  return true;
}

bool FuseGemm(Graph& graph, Node& node, PassContext& context) {
  const auto weight = MatchWeight(node.in(1));
  if (!weight || MatchWeight(node.in(0))) return false;
  if (node.attributes.Int("transA", 0) != 0) {
    context.Missed(node, "transA = 1 with a weight");
    return false;
  }
  Value* w = OutIn(graph, *weight, node.attributes.Int("transB", 0) == 0);
  const double alpha = node.attributes.Float("alpha", 1.0),
               beta = node.attributes.Float("beta", 1.0);
  Builder builder = At(graph, node);
  Value* bias = beta == 0 ? nullptr : node.in(2);
  const bool inside = bias != nullptr && alpha == 1 && beta == 1 && IsBias(bias, w->shape[0]);
  Value* y = inside ? builder.Op("Linear", {node.in(0), w, TrainedVector(graph, bias)})
                    : builder.Op("Linear", {node.in(0), w});
  if (alpha != 1) y = builder.Op("Mul", {y, builder.Float(static_cast<float>(alpha))});
  if (bias != nullptr && !inside) {
    bias = TrainedVector(graph, bias);
    if (beta != 1) bias = builder.Op("Mul", {bias, builder.Float(static_cast<float>(beta))});
    y = builder.Op("Add", {y, bias});
  }
  graph.ReplaceUses(node.out(), y);
  return true;
}

bool FuseGather(Graph& graph, Node& node) {
  const auto weight = MatchWeight(node.in(0));
  if (!weight || node.attributes.Int("axis", 0) != 0) return false;
  Value* ids = node.in(1);
  while (const Node* cast = Made(ids, "Cast")) {  // between integers: ids keep their values
    if (IsFloat(cast->in(0)->dtype)) return false;
    ids = cast->in(0);
  }
  if (ids != LaunchInput(graph) || ids->dtype != DType::kInt64) return false;
  Value* table = OutIn(graph, *weight, false);
  graph.ReplaceUses(node.out(), At(graph, node).Op("Embedding", {ids, table}));
  return true;
}

}  // namespace

std::string FuseLinear::doc() const {
  return "MatMul(x, w float[in,out]) + b ==> Linear(x, w' float[out,in], b)   w' reads w "
         "transposed\n"
         "Gemm<transB = 1>(x, w, b) ==> Linear(x, w, b);  Gather(w, input_ids) ==> "
         "Embedding(input_ids, w)\n"
         "The file's tensor becomes a parameter; tied uses share it.";
}

bool FuseLinear::Run(Graph& graph, PassContext& context) {
  for (const auto& node : graph.nodes()) {
    if (node->out(0) == nullptr || (node->out(0)->uses.empty() && !graph.IsOutput(node->out(0))))
      continue;
    const bool fused = (Is(*node, "MatMul") && FuseMatMul(graph, *node)) ||
                       (Is(*node, "Gemm") && FuseGemm(graph, *node, context)) ||
                       (Is(*node, "Gather") && FuseGather(graph, *node));
    if (fused) context.Matched(*node);
  }
  graph.RemoveDeadNodes();
  return context.matches > 0;
}

}  // namespace weir
