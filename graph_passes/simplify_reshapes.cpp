#include <algorithm>
#include <unordered_map>

#include "graph_passes/match.h"
#include "graph_passes/shape_tensor.h"
#include "graph_passes/simplify.h"

namespace weir {
namespace {

using Ints = std::vector<int64_t>;

Ints PermOf(const Node& transpose) {
  Ints perm = transpose.attributes.Ints("perm");
  if (!perm.empty()) return perm;
  for (size_t i = transpose.in(0)->shape.size(); i-- > 0;) perm.push_back(static_cast<int64_t>(i));
  return perm;
}

bool ReplaceByReshape(Rewrite& r) {
  if (!r.ShapesKnown()) return false;
  if (Same(r.in(0)->shape, r.out()->shape)) return r.Replace(r.in(0));
  const auto target = ReshapeTarget(r.in(0)->shape, r.out()->shape);
  Value* shape = target ? r.builder.Ints(*target) : ShapeTensor(r.builder, r.out()->shape);
  return shape != nullptr && r.Replace(r.builder.Op("Reshape", {r.in(0), shape}));
}

// Reshape(Transpose(Reshape(x, [-1,S,D]), [0,2,1]), [..,D,S]) ==> Transpose(Reshape(x, [..,S,D]),
// last two)
bool UndoFlatTranspose(Rewrite& r) {
  const Node* transpose = Made(r.in(0), "Transpose");
  const Node* flatten = transpose ? Made(transpose->in(0), "Reshape") : nullptr;
  if (!flatten || PermOf(*transpose) != Ints{0, 2, 1} || !flatten->in(0)->has_shape) return false;
  Value* x = flatten->in(0);
  const Shape &from = x->shape, &flat = flatten->out()->shape;
  Shape unflat = r.out()->shape;
  const size_t rank = unflat.size();
  if (rank < 3 || from.size() < 3 || !IsKnown(from)) return false;
  std::swap(unflat[rank - 2], unflat[rank - 1]);
  for (size_t i = 1; i <= 2; ++i) {
    if (!(unflat[rank - i] == flat[3 - i]) || !(from[from.size() - i] == flat[3 - i])) return false;
  }
  Ints perm;
  for (size_t i = 0; i < rank; ++i) perm.push_back(static_cast<int64_t>(i));
  std::swap(perm[rank - 2], perm[rank - 1]);
  return r.Replace(TransposeBy(r.builder, ReshapeTo(r.builder, x, unflat), perm));
}

bool KeepsLast(const Shape& a, const Shape& b) {
  return !a.empty() && !b.empty() && a.back() == b.back();
}

Value* LinearOf(Rewrite& r, const Node& linear, Value* x) {
  std::vector<Value*> inputs = linear.inputs;
  inputs[0] = x;
  return r.builder.Op("Linear", inputs, linear.attributes);
}

// Reshape(Linear(x), [-1, M]) ==> Linear(Reshape(x, [-1, K])): one reshape then serves all layers
// of x.
bool ReshapeOfLinear(Rewrite& r) {
  const Node* linear = Made(r.in(0), "Linear");
  const bool only = linear && r.in(0)->uses.size() == 1 && !r.graph.IsOutput(r.in(0));
  if (!only || !KeepsLast(r.in(0)->shape, r.out()->shape)) return false;
  Value* x = linear->in(0);
  if (!x->has_shape || !IsKnown(x->shape)) return false;
  Shape shape = r.out()->shape;
  shape.back() = x->shape.back();
  return r.Replace(LinearOf(r, *linear, ReshapeTo(r.builder, x, shape)));
}

// Linear(Reshape(x, [.., K])) that is reshaped again ==> Reshape(Linear(x))
bool SimplifyLinear(Rewrite& r) {
  const Node* reshape = Made(r.in(0), "Reshape");
  if (!reshape || !r.ShapesKnown() || r.graph.IsOutput(r.out())) return false;
  Value* x = reshape->in(0);
  if (!x->has_shape || !IsKnown(x->shape) || !KeepsLast(x->shape, r.in(0)->shape)) return false;
  for (const Use& use : r.out()->uses) {
    const bool again = Is(*use.node, "Reshape") && use.index == 0 && use.node->out()->has_shape;
    if (!again || KeepsLast(r.out()->shape, use.node->out()->shape)) return false;
  }
  return !r.out()->uses.empty() &&
         r.Replace(ReshapeTo(r.builder, LinearOf(r, r.node, x), r.out()->shape));
}

bool SimplifyReshape(Rewrite& r) {
  if (!r.ShapesKnown()) return false;
  if (Same(r.in(0)->shape, r.out()->shape)) return r.Replace(r.in(0));
  if (UndoFlatTranspose(r) || ReshapeOfLinear(r)) return true;
  if (const Node* inner = Made(r.in(0), "Reshape")) {
    const bool known = inner->in(0)->has_shape && IsKnown(inner->in(0)->shape);
    const auto target = known ? ReshapeTarget(inner->in(0)->shape, r.out()->shape) : std::nullopt;
    if (target || known) {
      Value* shape = target ? r.builder.Ints(*target) : ShapeTensor(r.builder, r.out()->shape);
      if (shape != nullptr) return r.Replace(r.builder.Op("Reshape", {inner->in(0), shape}));
    }
  }
  const auto target = ReshapeTarget(r.in(0)->shape, r.out()->shape);
  if (!target) return false;
  const bool allowzero = r.node.attributes.Has("allowzero");
  r.node.attributes.Erase("allowzero");
  return r.SetInts(1, *target) || allowzero;
}

bool SimplifyTranspose(Rewrite& r) {
  if (!r.in(0)->has_shape) return false;
  Ints perm = PermOf(r.node);
  if (std::is_sorted(perm.begin(), perm.end())) return r.Replace(r.in(0));
  const Node* inner = Made(r.in(0), "Transpose");
  if (inner == nullptr) return false;
  const Ints first = PermOf(*inner);
  for (int64_t& axis : perm) axis = first[static_cast<size_t>(axis)];
  return r.Replace(TransposeBy(r.builder, inner->in(0), perm));
}

bool SimplifyExpand(Rewrite& r) {
  if (!r.ShapesKnown()) return false;
  if (Same(r.in(0)->shape, r.out()->shape)) return r.Replace(r.in(0));
  if (const Node* inner = Made(r.in(0), "Expand")) {
    const bool known = inner->in(0)->has_shape && IsKnown(inner->in(0)->shape);
    Value* shape = known ? ShapeTensor(r.builder, r.out()->shape) : nullptr;
    if (shape != nullptr) return r.Replace(r.builder.Op("Expand", {inner->in(0), shape}));
  }
  const auto target = ExpandTarget(r.in(0)->shape, r.out()->shape);
  return target && r.SetInts(1, *target);
}

// Tile that only repeats axes of size 1 is an Expand.
bool SimplifyTile(Rewrite& r) {
  if (!r.ShapesKnown() || r.in(0)->shape.size() != r.out()->shape.size()) return false;
  if (Same(r.in(0)->shape, r.out()->shape)) return r.Replace(r.in(0));
  for (size_t i = 0; i < r.in(0)->shape.size(); ++i) {
    const Dim &from = r.in(0)->shape[i], &to = r.out()->shape[i];
    if (!(from == to) && !(from == Dim(1))) return false;
  }
  const auto target = ExpandTarget(r.in(0)->shape, r.out()->shape);
  Value* shape = target ? r.builder.Ints(*target) : ShapeTensor(r.builder, r.out()->shape);
  return shape != nullptr && r.Replace(r.builder.Op("Expand", {r.in(0), shape}));
}

}  // namespace

SimplifyRule FindReshapeRule(const std::string& op) {
  static const std::unordered_map<std::string, SimplifyRule> rules = {
      {"Reshape", SimplifyReshape},     {"Unsqueeze", ReplaceByReshape},
      {"Squeeze", ReplaceByReshape},    {"Flatten", ReplaceByReshape},
      {"Transpose", SimplifyTranspose}, {"Expand", SimplifyExpand},
      {"Tile", SimplifyTile},           {"Linear", SimplifyLinear},
  };
  const auto it = rules.find(op);
  return it == rules.end() ? nullptr : it->second;
}

}  // namespace weir
