#include "graph_passes/match_rotation.h"

#include "graph_passes/match.h"

namespace weir {
namespace {

// The two interwoven or concatenated halves of `value` along its last axis.
struct Halves {
  Value* first = nullptr;
  Value* second = nullptr;
  bool interleaved = false;
  explicit operator bool() const { return first != nullptr; }
};

bool IsLastAxis(int64_t axis, const Value* value) {
  return value->has_shape && axis + 1 == static_cast<int64_t>(value->shape.size());
}

// Reshape(x, [.., n, 1]) ==> x
Value* Unstacked(Value* value) {
  const Node* reshape = Made(value, "Reshape");
  if (!reshape || !reshape->in(0)->has_shape || !value->has_shape || value->shape.empty())
    return nullptr;
  const Shape head(value->shape.begin(), value->shape.end() - 1);
  return value->shape.back() == Dim(1) && Same(head, reshape->in(0)->shape) ? reshape->in(0)
                                                                            : nullptr;
}

// Concat(a, b) over the last axis, or Reshape(Concat(a[..,1], b[..,1])) that interleaves them
Halves Joined(const Node& node) {
  if (Is(node, "Concat") && node.inputs.size() == 2) {
    if (!IsLastAxis(node.attributes.Int("axis", 0), node.out())) return {};
    return {node.in(0), node.in(1), false};
  }
  const Node* concat = Is(node, "Reshape") ? Made(node.in(0), "Concat") : nullptr;
  if (!concat || concat->inputs.size() != 2 || !node.out()->has_shape) return {};
  if (!IsLastAxis(concat->attributes.Int("axis", 0), concat->out())) return {};
  Value *a = Unstacked(concat->in(0)), *b = Unstacked(concat->in(1));
  if (!a || !b || a->shape.size() != node.out()->shape.size()) return {};
  Shape doubled = a->shape;
  doubled.back() = doubled.back() * Dim(2);
  return Same(doubled, node.out()->shape) ? Halves{a, b, true} : Halves{};
}

// The value of which `a` and `b` are the first and second channel of every pair.
struct Pairing {
  Value* x = nullptr;
  bool interleaved = false;
};

Value* SqueezedLast(Value* value) {
  const Node* reshape = Made(value, "Reshape");
  if (!reshape || !reshape->in(0)->has_shape || !value->has_shape) return nullptr;
  Shape stacked = value->shape;
  stacked.push_back(1);
  return Same(stacked, reshape->in(0)->shape) ? reshape->in(0) : nullptr;
}

// x reshaped to [.., d/2, 2]: the value before, when that is all the reshape does.
Value* BeforePairs(Value* pairs) {
  const Node* reshape = Made(pairs, "Reshape");
  if (!reshape || !reshape->in(0)->has_shape || pairs->shape.size() < 2) return nullptr;
  Shape joined(pairs->shape.begin(), pairs->shape.end() - 1);
  joined.back() = joined.back() * Dim(2);
  return Same(joined, reshape->in(0)->shape) ? reshape->in(0) : nullptr;
}

Pairing PairOf(Value* a, Value* b) {
  // x.view(.., d/2, 2) indexed [.., 0] and [.., 1]
  Value *stacked_a = SqueezedLast(a), *stacked_b = SqueezedLast(b);
  const bool stacked = stacked_a && stacked_b;
  const Part first = PartOf(stacked ? stacked_a : a), second = PartOf(stacked ? stacked_b : b);
  if (!first || !second || first.whole != second.whole || !IsLastAxis(first.axis, first.whole))
    return {};
  if (first.axis != second.axis || first.length != second.length || first.start != 0) return {};
  const Dim& width = first.whole->shape.back();
  if (stacked) {
    const bool pairs = first.length == 1 && second.start == 1 && width == Dim(2);
    Value* x = pairs ? BeforePairs(first.whole) : nullptr;
    return {x, true};
  }
  if (!(width == Dim(2 * first.length)) || first.step != second.step) return {};
  if (first.step == 1 && second.start == first.length) return {first.whole, false};
  if (first.step == 2 && second.start == 1) return {first.whole, true};
  return {};
}

// The factors (cos-like operand, x-like operand) of a product whose one factor is `x`.
Value* FactorBeside(const Node* product, const Value* x) {
  return product == nullptr ? nullptr : OtherInput(*product, x);
}

}  // namespace

Rotation MatchRotateHalf(const Node& add) {
  const Node *a = Made(add.in(0), "Mul"), *b = Made(add.in(1), "Mul");
  if (!Is(add, "Add") || !a || !b) return {};
  for (int swap = 0; swap < 2; ++swap, std::swap(a, b)) {
    for (size_t i = 0; i < 2; ++i) {
      const Value* turned = b->in(i);
      const Halves halves = turned->producer ? Joined(*turned->producer) : Halves{};
      const Node* negated = halves ? Made(halves.first, "Neg") : nullptr;
      if (negated == nullptr) continue;
      const Pairing pair = PairOf(halves.second, negated->in(0));
      Value* cos = pair.x ? FactorBeside(a, pair.x) : nullptr;
      if (cos == nullptr || pair.interleaved != halves.interleaved) continue;
      return {pair.x, cos, b->in(1 - i), pair.interleaved, halves.interleaved, true};
    }
  }
  return {};
}

Rotation MatchSplitRotation(const Node& root) {
  const Halves halves = Joined(root);
  if (!halves) return {};
  const Node *sub = Made(halves.first, "Sub"), *add = Made(halves.second, "Add");
  const Node *c1 = sub ? Made(sub->in(0), "Mul") : nullptr,
             *s2 = sub ? Made(sub->in(1), "Mul") : nullptr;
  if (!c1 || !s2 || !add) return {};
  for (size_t i = 0; i < 2; ++i) {
    for (size_t j = 0; j < 2; ++j) {
      Value *x1 = c1->in(i), *cos = c1->in(1 - i), *x2 = s2->in(j), *sin = s2->in(1 - j);
      const Pairing pair = PairOf(x1, x2);
      if (pair.x == nullptr) continue;
      for (size_t k = 0; k < 2; ++k) {
        const Node *c2 = Made(add->in(k), "Mul"), *s1 = Made(add->in(1 - k), "Mul");
        if (FactorBeside(c2, x2) != cos || FactorBeside(s1, x1) != sin) continue;
        return {pair.x, cos, sin, pair.interleaved, halves.interleaved, false};
      }
    }
  }
  return {};
}

}  // namespace weir
