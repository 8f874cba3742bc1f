#include "graph_passes/bypass_last_token.h"

#include <limits>

#include "graph/error.h"
#include "graph_passes/match.h"

namespace weir {
namespace {

bool HasTokens(const Value* value) {
  return value->has_shape && value->shape.size() == 3 && value->shape[1] == Dim::Sequence();
}

// Gather(x, -1, axis 1) or Slice(x, -1:, axis 1) of x [batch, sequence, H]
bool SelectsLastToken(const Node& node) {
  if (node.in(0) == nullptr || !HasTokens(node.in(0))) return false;
  if (Is(node, "Gather")) return node.attributes.Int("axis", 0) == 1 && IsScalar(node.in(1), -1);
  if (!Is(node, "Slice") || !node.out()->has_shape) return false;
  const auto axes = IntsOf(node.in(3)), ends = IntsOf(node.in(2));
  if (!ends || ends->size() != 1 || (*ends)[0] < std::numeric_limits<int32_t>::max()) return false;
  return IsScalar(node.in(1), -1) && axes && axes->size() == 1 &&
         ((*axes)[0] == 1 || (*axes)[0] == -2);
}

// Ops of a head between the token selection and the logits. The first input carries the tokens.
Value* TokensOf(const Node& node) {
  static const char* const ops[] = {"MatMul",
                                    "Gemm",
                                    "Linear",
                                    "Cast",
                                    "Tanh",
                                    "RmsNorm",
                                    "Reshape",
                                    "Unsqueeze",
                                    "Squeeze",
                                    "Identity",
                                    "LayerNormalization"};
  for (const char* op : ops) {
    if (node.op() == op) return node.in(0);
  }
  const bool binary = Is(node, "Mul") || Is(node, "Div") || Is(node, "Add") || Is(node, "Sub");
  if (!binary) return nullptr;
  return node.in(0)->role == Role::kActivation ? node.in(0) : node.in(1);
}

}  // namespace

std::string BypassLastToken::doc() const {
  return "logits = Linear(Reshape(Gather<axis = 1>(h, -1), [0,1,-1]), w) ==> logits = Linear(h, w)";
}

bool BypassLastToken::Run(Graph& graph, PassContext& context) {
  std::vector<Node*> path;
  Value* value = graph.outputs.at(0);
  while (value->producer != nullptr && !SelectsLastToken(*value->producer)) {
    path.push_back(value->producer);
    value = TokensOf(*value->producer);
    if (value == nullptr || value->role != Role::kActivation) return false;
  }
  if (value->producer == nullptr) return false;
  Node* select = value->producer;
  context.Matched(*select);
  graph.stripped.push_back(
      StrCat("last-token selection ", select->source, ": the head sees every token"));
  graph.ReplaceUses(value, select->in(0));
  // The selection's own axis juggling goes with it.
  for (Node* node : path) {
    const bool juggles = Is(*node, "Reshape") || Is(*node, "Unsqueeze") || Is(*node, "Squeeze");
    if (juggles) graph.ReplaceUses(node->out(), node->in(0));
  }
  graph.RemoveDeadNodes();
  return true;
}

}  // namespace weir
