#include "kernels/elementwise/gradients.h"

#include "graph/error.h"

namespace weir {

Value* ReduceToShape(Builder& builder, Value* gradient, const Value& input) {
  WEIR_CHECK(input.has_shape && gradient->has_shape, ErrorCode::kInvalidShape, "the gradient of '",
             input.name, "' needs a known rank; give the graph's inputs shapes");
  const size_t extra = gradient->shape.size() - input.shape.size();
  std::vector<int64_t> leading, inner;
  for (size_t axis = 0; axis < gradient->shape.size(); ++axis) {
    if (axis < extra) {
      leading.push_back(static_cast<int64_t>(axis));
    } else if (input.shape[axis - extra] == Dim(1) && !(gradient->shape[axis] == Dim(1))) {
      inner.push_back(static_cast<int64_t>(axis - extra));
    }
  }
  if (!leading.empty()) {
    gradient =
        builder.Op("ReduceSum", {gradient, builder.Ints(leading)}, {{"keepdims", int64_t{0}}});
  }
  if (!inner.empty()) {
    gradient = builder.Op("ReduceSum", {gradient, builder.Ints(inner)}, {{"keepdims", int64_t{1}}});
  }
  return gradient;
}

std::optional<double> ConstantScalar(const Value* value) {
  if (value == nullptr || value->role != Role::kConstant || value->data == nullptr)
    return std::nullopt;
  if (value->data->elements() != 1) return std::nullopt;
  if (IsFloat(value->dtype)) return value->data->AsDoubles()[0];
  return static_cast<double>(value->data->AsInts()[0]);
}

namespace {

// Adds `gradient` to input i after undoing its broadcast.
void AddReduced(GradientContext& g, size_t i, Value* gradient) {
  g.Add(i, ReduceToShape(g.builder, gradient, *g.in(i)));
}

}  // namespace

void UnaryGradient(GradientContext& g) {
  if (g.OutputGradient() == nullptr || !g.Needs(0)) return;
  Attributes attributes = g.node.attributes;
  attributes.Set("function", g.node.op());
  g.Add(0, g.builder.Op("UnaryGradient", {g.in(0), g.OutputGradient()}, attributes));
}

void FlatGradient(GradientContext&) {}

void NegGradient(GradientContext& g) {
  if (g.OutputGradient() != nullptr && g.Needs(0))
    g.Add(0, g.builder.Op("Neg", {g.OutputGradient()}));
}

void ExpGradient(GradientContext& g) {
  if (g.OutputGradient() == nullptr || !g.Needs(0)) return;
  g.Add(0, g.builder.Op("Mul", {g.OutputGradient(), g.out()}));
}

void AddGradient(GradientContext& g) {
  if (g.OutputGradient() == nullptr) return;
  for (size_t i = 0; i < g.node.inputs.size(); ++i) {
    if (g.Needs(i)) AddReduced(g, i, g.OutputGradient());
  }
}

void SubGradient(GradientContext& g) {
  if (g.OutputGradient() == nullptr) return;
  if (g.Needs(0)) AddReduced(g, 0, g.OutputGradient());
  // Reduced before it is negated: fewer elements.
  if (g.Needs(1))
    g.Add(1, g.builder.Op("Neg", {ReduceToShape(g.builder, g.OutputGradient(), *g.in(1))}));
}

void MulGradient(GradientContext& g) {
  if (g.OutputGradient() == nullptr) return;
  for (size_t i = 0; i < 2; ++i) {
    if (g.Needs(i)) AddReduced(g, i, g.builder.Op("Mul", {g.OutputGradient(), g.in(1 - i)}));
  }
}

void DivGradient(GradientContext& g) {
  if (g.OutputGradient() == nullptr) return;
  Value* scaled = g.builder.Op("Div", {g.OutputGradient(), g.in(1)});
  if (g.Needs(0)) AddReduced(g, 0, scaled);
  if (!g.Needs(1)) return;
  Value* product = g.builder.Op("Mul", {scaled, g.out()});
  g.Add(1, g.builder.Op("Neg", {ReduceToShape(g.builder, product, *g.in(1))}));
}

void PowGradient(GradientContext& g) {
  Value* dy = g.OutputGradient();
  if (dy == nullptr) return;
  Builder& b = g.builder;
  Value* exponent = g.in(1);
  if (g.Needs(0)) {
    Value* less = nullptr;
    if (const auto constant = ConstantScalar(exponent)) {
      exponent = b.Float(static_cast<float>(*constant));
      less = b.Float(static_cast<float>(*constant - 1));
    } else {
      if (!IsFloat(exponent->dtype)) exponent = b.Op("Cast", {exponent}, {{"to", int64_t{1}}});
      less = b.Op("Sub", {exponent, b.Float(1)});
    }
    AddReduced(g, 0, b.Op("Mul", {dy, b.Op("Mul", {exponent, b.Op("Pow", {g.in(0), less})})}));
  }
  if (g.Needs(1)) {
    AddReduced(g, 1, b.Op("Mul", {dy, b.Op("Mul", {g.out(), b.Op("Log", {g.in(0)})})}));
  }
}

void ModGradient(GradientContext& g) {
  if (g.OutputGradient() != nullptr && g.Needs(0)) AddReduced(g, 0, g.OutputGradient());
}

void MeanGradient(GradientContext& g) {
  if (g.OutputGradient() == nullptr) return;
  Value* share = g.builder.Op(
      "Mul",
      {g.OutputGradient(), g.builder.Float(1.0f / static_cast<float>(g.node.inputs.size()))});
  for (size_t i = 0; i < g.node.inputs.size(); ++i) {
    if (g.Needs(i)) AddReduced(g, i, share);
  }
}

void ExtremeGradient(GradientContext& g) {
  Value* rest = g.OutputGradient();
  if (rest == nullptr) return;
  Builder& b = g.builder;
  for (size_t i = 0; i < g.node.inputs.size(); ++i) {
    const bool more = i + 1 < g.node.inputs.size();
    if (!g.Needs(i) && !more) return;
    Value* chosen = b.Op("Equal", {g.in(i), g.out()});
    Value* zero = b.Float(0);
    if (g.Needs(i)) AddReduced(g, i, b.Op("Where", {chosen, rest, zero}));
    if (more) rest = b.Op("Where", {chosen, zero, rest});
  }
}

void WhereGradient(GradientContext& g) {
  if (g.OutputGradient() == nullptr) return;
  Value* zero = g.builder.Float(0);
  if (g.Needs(1)) AddReduced(g, 1, g.builder.Op("Where", {g.in(0), g.OutputGradient(), zero}));
  if (g.Needs(2)) AddReduced(g, 2, g.builder.Op("Where", {g.in(0), zero, g.OutputGradient()}));
}

void ClipGradient(GradientContext& g) {
  if (g.OutputGradient() == nullptr || !g.Needs(0)) return;
  Builder& b = g.builder;
  Value* inside = g.in(1) == nullptr ? nullptr : b.Op("GreaterOrEqual", {g.in(0), g.in(1)});
  if (g.in(2) != nullptr) {
    Value* below = b.Op("LessOrEqual", {g.in(0), g.in(2)});
    inside = inside == nullptr ? below : b.Op("And", {inside, below});
  }
  g.Add(0, inside == nullptr ? g.OutputGradient()
                             : b.Op("Where", {inside, g.OutputGradient(), b.Float(0)}));
}

}  // namespace weir
