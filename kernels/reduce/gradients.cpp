#include "kernels/reduce/gradients.h"

#include "graph/op_schema.h"
#include "kernels/common/infer.h"
#include "kernels/reduce/reference.h"

namespace weir {
namespace {

constexpr int64_t kOnnxFloat = 1;

struct Reduced {
  std::vector<int64_t> axes;  // ascending, not negative
  bool keepdims;
};

Reduced AxesOf(const Node& node) {
  const Value& x = *node.in(0);
  WEIR_CHECK(x.has_shape, ErrorCode::kInvalidShape, node.op(), " ", node.source,
             ": its gradient needs the rank of the input; give the graph's inputs shapes");
  std::vector<int64_t> given;
  if (const Value* axes = node.in(1)) {
    WEIR_CHECK(axes->content && IsConcrete(*axes->content), ErrorCode::kInvalidModel, node.op(),
               " ", node.source, ": its gradient needs constant axes");
    given = ToDims(*axes->content);
  }
  const auto reduced =
      ReducedAxes(node.attributes, x.shape.size(), node.in(1) == nullptr ? nullptr : &given);
  Reduced result{{}, node.attributes.Int("keepdims", 1) != 0};
  for (size_t axis = 0; axis < reduced.size(); ++axis) {
    if (reduced[axis]) result.axes.push_back(static_cast<int64_t>(axis));
  }
  return result;
}

// Puts dropped axes back as 1, so that the value broadcasts against x.
Value* Kept(Builder& b, Value* value, const Reduced& reduced) {
  if (reduced.keepdims || reduced.axes.empty()) return value;
  return b.Op("Unsqueeze", {value, b.Ints(reduced.axes)});
}

// Repeats `kept` to x's shape.
Value* ExpandLike(Builder& b, Value* kept, Value* x) {
  if (Same(kept->shape, x->shape)) return kept;
  return b.Op("Expand", {kept, ShapeOf(b, x)});
}

bool Wanted(GradientContext& g) { return g.OutputGradient() != nullptr && g.Needs(0); }

}  // namespace

void ReduceSumGradient(GradientContext& g) {
  if (!Wanted(g)) return;
  g.Add(0, ExpandLike(g.builder, Kept(g.builder, g.OutputGradient(), AxesOf(g.node)), g.in(0)));
}

void ReduceMeanGradient(GradientContext& g) {
  if (!Wanted(g)) return;
  Builder& b = g.builder;
  const Reduced reduced = AxesOf(g.node);
  Dim count = 1;
  for (const int64_t axis : reduced.axes) count = count * g.in(0)->shape[static_cast<size_t>(axis)];
  Value* share = nullptr;
  if (count.IsConstant()) {
    share = b.Op("Mul", {g.OutputGradient(), b.Float(1.0f / static_cast<float>(count.Constant()))});
  } else {
    Value* sizes = b.Op("Div", {b.Op("Size", {g.in(0)}), b.Op("Size", {g.out()})});
    share = b.Op("Div", {g.OutputGradient(), b.Op("Cast", {sizes}, {{"to", kOnnxFloat}})});
  }
  g.Add(0, ExpandLike(b, Kept(b, share, reduced), g.in(0)));
}

void ReduceExtremeGradient(GradientContext& g) {
  if (!Wanted(g)) return;
  Builder& b = g.builder;
  const Reduced reduced = AxesOf(g.node);
  Value* chosen = b.Op("Equal", {g.in(0), Kept(b, g.out(), reduced)});
  Value* ones = b.Op("Cast", {chosen}, {{"to", kOnnxFloat}});
  Value* ties =
      b.Op("ReduceSum", {ones, b.Ints(reduced.axes)}, {{"noop_with_empty_axes", int64_t{1}}});
  Value* share = b.Op("Div", {Kept(b, g.OutputGradient(), reduced), ties});
  g.Add(0, b.Op("Where", {chosen, share, b.Float(0)}));
}

// dx = x * dy / y, 0 where y = 0.
void ReduceL2Gradient(GradientContext& g) {
  if (!Wanted(g)) return;
  Builder& b = g.builder;
  Value* zero = b.Op("Equal", {g.out(), b.Float(0)});
  Value* ratio = b.Op("Where", {zero, b.Float(0), b.Op("Div", {g.OutputGradient(), g.out()})});
  g.Add(0, b.Op("Mul", {g.in(0), Kept(b, ratio, AxesOf(g.node))}));
}

void ReduceSumSquareGradient(GradientContext& g) {
  if (!Wanted(g)) return;
  Builder& b = g.builder;
  Value* twice = b.Op("Mul", {g.OutputGradient(), b.Float(2)});
  g.Add(0, b.Op("Mul", {g.in(0), Kept(b, twice, AxesOf(g.node))}));
}

// dx = dy * e^(x - y)
void ReduceLogSumExpGradient(GradientContext& g) {
  if (!Wanted(g)) return;
  Builder& b = g.builder;
  const Reduced reduced = AxesOf(g.node);
  Value* share = b.Op("Exp", {b.Op("Sub", {g.in(0), Kept(b, g.out(), reduced)})});
  g.Add(0, b.Op("Mul", {share, Kept(b, g.OutputGradient(), reduced)}));
}

}  // namespace weir
