#include "graph_passes/match_attention.h"

#include "graph/error.h"
#include "graph_passes/match.h"

namespace weir {
namespace {

constexpr double kDropped = -9999;

bool IsLast(const Node& node, int64_t axis) {
  return node.in(0)->has_shape && NormalAxis(axis, node.in(0)->shape.size()) ==
                                      static_cast<int64_t>(node.in(0)->shape.size()) - 1;
}

// Slice(x, 0:-1) over the last axis: everything but the sink's column.
bool DropsLastColumn(const Node& node) {
  const auto axes = IntsOf(node.in(3)), ends = IntsOf(node.in(2));
  const bool unit = node.in(4) == nullptr || IsScalar(node.in(4), 1);
  return IsScalar(node.in(1), 0) && ends && ends->size() == 1 && (*ends)[0] == -1 && axes &&
         axes->size() == 1 && IsLast(node, (*axes)[0]) && unit;
}

// The Softmax behind what guards and slices its result.
const Node* FindSoftmax(Value* probabilities, bool& sliced) {
  for (int depth = 0; depth < 4; ++depth) {
    if (const Node* softmax = Made(probabilities, "Softmax")) {
      return IsLast(*softmax, softmax->attributes.Int("axis", -1)) ? softmax : nullptr;
    }
    const Node *where = Made(probabilities, "Where"), *slice = Made(probabilities, "Slice");
    const Node* nan = where ? Made(where->in(0), "IsNaN") : nullptr;
    if (nan && nan->in(0) == where->in(2) && IsScalar(where->in(1), 0)) {
      probabilities = where->in(2);  // rows without any allowed key: causal masks have none
    } else if (slice && !sliced && DropsLastColumn(*slice)) {
      sliced = true;
      probabilities = slice->in(0);
    } else {
      return nullptr;
    }
  }
  return nullptr;
}

// Concat(scores, sinks), with or without the subtraction of its row maximum.
bool StripSinks(Value*& scores, EagerAttention& match) {
  if (const Node* sub = Made(scores, "Sub")) {
    const Node* max = Made(sub->in(1), "ReduceMax");
    const auto axes = max ? IntsOf(*max, 1, "axes") : std::nullopt;
    if (!max || max->in(0) != sub->in(0) || !axes || axes->size() != 1 || !IsLast(*max, (*axes)[0]))
      return false;
    scores = sub->in(0);
  }
  const Node* concat = Made(scores, "Concat");
  if (!concat || concat->inputs.size() != 2 || !IsLast(*concat, concat->attributes.Int("axis", 0)))
    return false;
  Value* sinks = concat->in(1);
  if (!sinks->has_shape || !(sinks->shape.back() == Dim(1))) return false;
  if (const Node* expand = Made(sinks, "Expand")) sinks = expand->in(0);
  match.sinks = sinks;
  scores = concat->in(0);
  return true;
}

// Add(x, mask) or Where(keep, x, very negative), where the mask follows from the launch shape.
bool StripMask(Value*& scores, const LaunchConstants& constants, EagerAttention& match) {
  if (const Node* add = Made(scores, "Add")) {
    for (size_t i = 0; i < 2; ++i) {
      if (!constants.Has(add->in(i)) || constants.Has(add->in(1 - i))) continue;
      match.masks.push_back({add->in(i), false});
      scores = add->in(1 - i);
      return true;
    }
  }
  const Node* where = Made(scores, "Where");
  if (!where || !constants.Has(where->in(0))) return false;
  for (const bool inverted : {false, true}) {
    const auto fill = ScalarOf(where->in(inverted ? 1 : 2));
    if (!fill || *fill > kDropped) continue;
    match.masks.push_back({where->in(0), inverted});
    scores = where->in(inverted ? 2 : 1);
    return true;
  }
  return false;
}

double StripScales(Value*& value) {
  double scale = 1;
  for (Scaled step = StripScale(value); step.inner != value; step = StripScale(value)) {
    scale *= step.factor;
    value = step.inner;
  }
  return scale;
}

bool IsHeads(const Value* value) { return value->has_shape && value->shape.size() == 4; }

}  // namespace

bool MatchEagerAttention(const Node& product, const LaunchConstants& constants,
                         EagerAttention& match, std::string& why) {
  bool sliced = false;
  const Node* softmax = Is(product, "MatMul") ? FindSoftmax(product.in(0), sliced) : nullptr;
  if (softmax == nullptr || !IsHeads(product.in(1)) || !IsHeads(softmax->in(0))) return false;
  match.v = product.in(1);
  Value* scores = softmax->in(0);
  if (sliced && !StripSinks(scores, match)) {
    why = "a column is cut from the probabilities, but it is no attention sink";
    return false;
  }
  while (StripMask(scores, constants, match)) {
  }
  double scale = StripScales(scores);
  if (const Node* tanh = Made(scores, "Tanh")) {
    match.softcap = scale;
    scores = tanh->in(0);
    scale = StripScales(scores) * match.softcap;
  }
  const Node* qk = Made(scores, "MatMul");
  if (qk == nullptr || !IsHeads(qk->in(0)) || !IsHeads(qk->in(1))) {
    why = "the scores are not a masked and scaled product of queries and keys";
    return false;
  }
  match.q = qk->in(0);
  match.k = qk->in(1);
  match.k_transposed = true;
  scale *= StripScales(match.q) * StripScales(match.k);
  const Node* transpose = Made(match.k, "Transpose");
  if (transpose && transpose->attributes.Ints("perm") == std::vector<int64_t>{0, 1, 3, 2}) {
    match.k = transpose->in(0);
    match.k_transposed = false;
    scale *= StripScales(match.k);
  }
  match.scale = scale;
  return true;
}

Repeated StripRepeat(Value* value) {
  const Node* flatten = Made(value, "Reshape");
  const Node* expand = flatten ? Made(flatten->in(0), "Expand") : nullptr;
  const Node* unsqueeze = expand ? Made(expand->in(0), "Reshape") : nullptr;
  if (!unsqueeze || !unsqueeze->in(0)->has_shape || !value->has_shape) return {value, 1};
  Value* base = unsqueeze->in(0);
  const Shape &one = unsqueeze->out()->shape, &many = expand->out()->shape;
  if (base->shape.size() != 4 || one.size() != 5 || many.size() != 5 || value->shape.size() != 4)
    return {value, 1};
  const Shape &b = base->shape, &v = value->shape;
  if (!Same(one, {b[0], b[1], 1, b[2], b[3]}) || !many[2].IsConstant()) return {value, 1};
  const Dim times = many[2];
  if (!Same(many, {b[0], b[1], times, b[2], b[3]}) || !Same(v, {b[0], b[1] * times, b[2], b[3]}))
    return {value, 1};
  return {base, times.Constant()};
}

}  // namespace weir
