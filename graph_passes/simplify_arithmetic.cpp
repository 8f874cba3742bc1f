#include <cmath>
#include <unordered_map>

#include "graph_passes/match.h"
#include "graph_passes/simplify.h"

namespace weir {
namespace {

bool ReplaceWithInput(Rewrite& r) { return r.Replace(r.in(0)); }

bool SimplifyDropout(Rewrite& r) {
  if (r.in(2) != nullptr && !IsScalar(r.in(2), 0)) return false;  // training_mode
  const bool mask_used = r.node.out(1) != nullptr && !r.node.out(1)->uses.empty();
  return !mask_used && r.Replace(r.in(0));
}

bool SimplifyCast(Rewrite& r) {
  const DType to = DTypeFromOnnx(r.node.attributes.Int("to"));
  return r.in(0)->dtype == to && r.Replace(r.in(0));
}

bool SimplifyCastLike(Rewrite& r) {
  const DType to = r.in(1)->dtype;
  if (to == DType::kUndefined || r.in(0)->dtype == DType::kUndefined) return false;
  if (to == r.in(0)->dtype) return r.Replace(r.in(0));
  return r.Replace(r.builder.Op("Cast", {r.in(0)}, {{"to", int64_t{OnnxNumber(to)}}}));
}

// Whether x op scalar has the shape of x.
bool KeepsShape(const Value* x, const Value* scalar) {
  return scalar->shape.size() <= x->shape.size();
}

bool DropNeutral(Rewrite& r, double neutral, bool commutes) {
  for (size_t i = commutes ? 0 : 1; i < 2; ++i) {
    Value* x = r.in(1 - i);
    if (IsScalar(r.in(i), neutral) && x->has_shape && KeepsShape(x, r.in(i))) return r.Replace(x);
  }
  return false;
}

bool SimplifyAdd(Rewrite& r) { return DropNeutral(r, 0, true); }
bool SimplifySub(Rewrite& r) { return DropNeutral(r, 0, false); }

// x * 0.5 * (1 + erf(x / sqrt(2))), factors in any order ==> Gelu(x)
bool FuseGelu(Rewrite& r) {
  std::vector<Value*> factors;
  for (Value* input : r.node.inputs) {
    const Node* inner = Made(input, "Mul");
    if (inner == nullptr) factors.push_back(input);
    if (inner != nullptr) factors.insert(factors.end(), inner->inputs.begin(), inner->inputs.end());
  }
  Value *x = nullptr, *erf_of = nullptr;
  bool half = false;
  for (Value* factor : factors) {
    const Node* add = Made(factor, "Add");
    const Operands sum = add ? SplitOperands(*add, "Erf") : Operands{};
    if (sum && IsScalar(sum.rest, 1)) {
      erf_of = sum.made->in(0);
    } else if (IsScalar(factor, 0.5)) {
      half = true;
    } else {
      x = factor;
    }
  }
  if (factors.size() != 3 || !half || x == nullptr || erf_of == nullptr) return false;
  const Scaled scaled = StripScale(erf_of);
  if (scaled.inner != x || std::abs(scaled.factor - std::sqrt(0.5)) > 1e-6) return false;
  return r.Replace(r.builder.Op("Gelu", {x}));
}

bool SimplifyMul(Rewrite& r) { return DropNeutral(r, 1, true) || FuseGelu(r); }

bool SimplifyDiv(Rewrite& r) {
  if (DropNeutral(r, 1, false)) return true;
  const bool inverse = IsScalar(r.in(0), 1) && IsFloat(r.in(1)->dtype) && r.in(1)->has_shape;
  if (!inverse || !KeepsShape(r.in(1), r.in(0))) return false;
  return r.Replace(r.builder.Op("Reciprocal", {r.in(1)}));
}

bool SimplifyPow(Rewrite& r) {
  Value* x = r.in(0);
  const auto exponent = ScalarOf(r.in(1));
  if (!exponent || !x->has_shape || !KeepsShape(x, r.in(1)) || !IsFloat(x->dtype)) return false;
  if (*exponent == 1) return r.Replace(x);
  if (*exponent == 2) return r.Replace(r.builder.Op("Mul", {x, x}));
  if (*exponent == 0.5) return r.Replace(r.builder.Op("Sqrt", {x}));
  if (*exponent != -0.5) return false;
  return r.Replace(r.builder.Op("Reciprocal", {r.builder.Op("Sqrt", {x})}));
}

// A boolean constant whose elements are all `wanted`.
bool IsAll(const Value* value, bool wanted) {
  if (value->role != Role::kConstant || value->data == nullptr || value->dtype != DType::kBool)
    return false;
  if (value->data->elements() == 0 || value->data->elements() > 4096) return false;
  for (int64_t element : value->data->AsInts()) {
    if ((element != 0) != wanted) return false;
  }
  return true;
}

bool SimplifyLogic(Rewrite& r, bool neutral) {
  for (size_t i = 0; i < 2; ++i) {
    Value* x = r.in(1 - i);
    if (!IsAll(r.in(i), neutral) || !x->has_shape || !r.out()->has_shape) continue;
    if (Same(x->shape, r.out()->shape)) return r.Replace(x);
  }
  return false;
}

bool SimplifyAnd(Rewrite& r) { return SimplifyLogic(r, true); }
bool SimplifyOr(Rewrite& r) { return SimplifyLogic(r, false); }

bool SimplifyWhere(Rewrite& r) {
  for (const bool condition : {true, false}) {
    if (!IsAll(r.in(0), condition)) continue;
    Value* chosen = r.in(condition ? 1 : 2);
    if (!chosen->has_shape || !r.out()->has_shape || !Same(chosen->shape, r.out()->shape))
      return false;
    return r.Replace(chosen);
  }
  return false;
}

// Min(x, c), Max(x, c) with a constant bound ==> Clip; Clip of Clip with complementary bounds ==>
// one.
bool SimplifyExtremum(Rewrite& r) {
  if (r.node.inputs.size() == 1) return r.Replace(r.in(0));
  if (r.node.inputs.size() != 2) return false;
  for (size_t i = 0; i < 2; ++i) {
    Value *bound = r.in(i), *x = r.in(1 - i);
    if (!ScalarOf(bound) || ScalarOf(x) || !x->has_shape || !KeepsShape(x, bound)) continue;
    if (!bound->shape.empty()) bound = r.builder.Op("Reshape", {bound, r.builder.Ints({})});
    std::vector<Value*> inputs = {x, nullptr, bound};
    if (r.node.op() == "Max") inputs = {x, bound};
    return r.Replace(r.builder.Op("Clip", inputs));
  }
  return false;
}

bool SimplifyClip(Rewrite& r) {
  const Node* inner = Made(r.in(0), "Clip");
  if (inner == nullptr) return false;
  const bool complementary = !(inner->in(1) && r.in(1)) && !(inner->in(2) && r.in(2));
  Value* low = inner->in(1) ? inner->in(1) : r.in(1);
  Value* high = inner->in(2) ? inner->in(2) : r.in(2);
  if (!complementary || !low || !high || ScalarOf(low) > ScalarOf(high)) return false;
  return r.Replace(r.builder.Op("Clip", {inner->in(0), low, high}));
}

bool SimplifySum(Rewrite& r) {
  if (r.node.inputs.size() == 1) return r.Replace(r.in(0));
  Value* sum = r.in(0);
  for (size_t i = 1; i < r.node.inputs.size(); ++i) sum = r.builder.Op("Add", {sum, r.in(i)});
  return r.Replace(sum);
}

bool SimplifySwish(Rewrite& r) {
  const double alpha = r.node.attributes.Float("alpha", 1.0);
  Value* x = r.in(0);
  Value* scaled =
      alpha == 1 ? x : r.builder.Op("Mul", {x, r.builder.Float(static_cast<float>(alpha))});
  return r.Replace(r.builder.Op("Mul", {x, r.builder.Op("Sigmoid", {scaled})}));
}

}  // namespace

SimplifyRule FindArithmeticRule(const std::string& op) {
  static const std::unordered_map<std::string, SimplifyRule> rules = {
      {"Identity", ReplaceWithInput}, {"Dropout", SimplifyDropout}, {"Cast", SimplifyCast},
      {"CastLike", SimplifyCastLike}, {"Add", SimplifyAdd},         {"Sub", SimplifySub},
      {"Mul", SimplifyMul},           {"Div", SimplifyDiv},         {"Pow", SimplifyPow},
      {"And", SimplifyAnd},           {"Or", SimplifyOr},           {"Where", SimplifyWhere},
      {"Min", SimplifyExtremum},      {"Max", SimplifyExtremum},    {"Clip", SimplifyClip},
      {"Sum", SimplifySum},           {"Swish", SimplifySwish},
  };
  const auto it = rules.find(op);
  return it == rules.end() ? nullptr : it->second;
}

}  // namespace weir
