#include "graph_passes/simplify.h"

#include <algorithm>

#include "graph_passes/match.h"

namespace weir {

Rewrite::Rewrite(Graph& graph, Node& node) : graph(graph), node(node), builder(At(graph, node)) {}

bool Rewrite::Replace(Value* value) {
  graph.ReplaceUses(node.out(0), value);
  return true;
}

bool Rewrite::SetInts(size_t input, const std::vector<int64_t>& ints) {
  const Value* now = node.in(input);
  const bool constant = now != nullptr && now->role == Role::kConstant && now->shape.size() == 1;
  if (constant && IntsOf(now) == ints) return false;
  graph.SetInput(&node, input, builder.Ints(ints));
  return true;
}

bool Rewrite::ShapesKnown() const {
  return in(0) != nullptr && in(0)->has_shape && IsKnown(in(0)->shape) && out()->has_shape &&
         IsKnown(out()->shape);
}

std::string Simplify::doc() const {
  return "Identity(x) ==> x;  Reshape(Unsqueeze(x), s) ==> Reshape(x, [0,-1]);  Pow(x, 2) ==> "
         "Mul(x, x)\n"
         "Transpose(Transpose(x)) ==> Transpose(x);  x * 1 ==> x;  Slice(Concat(a, b)) ==> a;  ...";
}

bool Simplify::Run(Graph& graph, PassContext& context) {
  for (const auto& node : graph.nodes()) {
    const std::string& domain = node->schema->domain;
    if ((!domain.empty() && domain != "ai.weir") || node->out(0) == nullptr) continue;
    bool changed = NormalizeAttributes(graph, *node);
    Rewrite rewrite(graph, *node);
    for (auto* find : {FindArithmeticRule, FindReshapeRule, FindPartRule}) {
      const SimplifyRule rule = find(node->op());
      if (rule == nullptr) continue;
      changed |= rule(rewrite);
      break;
    }
    context.matches += changed;
  }
  graph.RemoveDeadNodes();
  return context.matches > 0;
}

}  // namespace weir
