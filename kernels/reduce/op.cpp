#include <optional>

#include "graph/op_schema.h"
#include "kernels/reduce/gradients.h"
#include "kernels/reduce/reference.h"

namespace weir {
namespace {

// The integers of a fully known content; nullopt otherwise.
std::optional<std::vector<int64_t>> Constants(const std::vector<Dim>* content) {
  if (content == nullptr || !IsConcrete(*content)) return std::nullopt;
  return ToDims(*content);
}

void InferShape(InferContext& c) {
  c.SetDType(0, c.in(0)->dtype);
  if (!c.HasShape(0)) return;
  const Shape& x = c.shape(0);
  const bool keepdims = c.node.attributes.Int("keepdims", 1) != 0;
  std::vector<bool> reduced;
  if (c.in(1) == nullptr) {
    reduced = ReducedAxes(c.node.attributes, x.size(), nullptr);
  } else if (const auto axes = Constants(c.content(1))) {
    reduced = ReducedAxes(c.node.attributes, x.size(), &*axes);
  } else {
    if (keepdims) c.SetOutput(0, c.in(0)->dtype, Shape(x.size()));
    return;
  }
  Shape y;
  for (size_t axis = 0; axis < x.size(); ++axis) {
    if (!reduced[axis]) y.push_back(x[axis]);
    if (reduced[axis] && keepdims) y.push_back(1);
  }
  c.SetOutput(0, c.in(0)->dtype, y);
}

// ReduceProd and ReduceSum of a shape stay symbolic.
template <bool product>
void InferWithContent(InferContext& c) {
  InferShape(c);
  const auto* x = c.content(0);
  const Value* y = c.node.out(0);
  if (x == nullptr || y == nullptr || !y->has_shape || y->shape.size() > 1) return;
  if (y->shape.size() == 1 && c.shape(0).size() == 1 && !(y->shape[0] == Dim(1))) return;
  Dim total = product ? 1 : 0;
  for (const Dim& dim : *x) total = product ? total * dim : total + dim;
  c.SetContent(0, {total});
}

CaseInput Axes(std::vector<int64_t> axes) {
  return {
      .kind = CaseInput::Kind::kInts, .dims = {static_cast<int64_t>(axes.size())}, .ints = axes};
}

std::vector<OpCase> Cases() {
  const Attributes drop{{"keepdims", int64_t{0}}};
  const Attributes noop{{"noop_with_empty_axes", int64_t{1}}};
  return {{"last", {{.dims = {4, 67}}, Axes({-1})}},
          {"last_drop", {{.dims = {4, 67}}, Axes({1})}, drop},
          {"first", {{.dims = {37, 5}}, Axes({0})}, drop},
          {"middle", {{.dims = {2, 33, 7}}, Axes({-2})}},
          {"outer_pair", {{.dims = {3, 5, 7}}, Axes({0, 2})}, drop},
          {"alternate", {{.dims = {2, 3, 4, 5}}, Axes({3, 1})}},
          {"all", {{.dims = {3, 5, 7}}}},
          {"all_drop", {{.dims = {3, 5, 7}}, Axes({})}, drop},
          {"unit_axis", {{.dims = {3, 1, 5}}, Axes({1})}, drop},
          {"no_axis", {{.dims = {3, 5}}, Axes({})}, noop},
          {"scalar", {{.dims = {}}}},
          {"no_rows", {{.dims = {0, 8}}, Axes({1})}, {}, 1, false},
          {"long", {{.dims = {3, 5000}}, Axes({1})}}};
}
std::vector<OpCase> SumCases() {
  auto cases = Cases();
  cases.push_back({"empty_axis", {{.dims = {3, 0}}, Axes({1})}, {}, 1, false});
  cases.push_back(
      {"ints",
       {{.kind = CaseInput::Kind::kInts, .dims = {2, 3}, .ints = {1, -2, 3, 4, 5, 6}}, Axes({1})},
       {},
       1,
       false});
  return cases;
}
std::vector<OpCase> ExtremeCases() {
  auto cases = Cases();
  cases.push_back({"empty_axis", {{.dims = {3, 0}}, Axes({1})}, {}, 1, false});
  return cases;
}
std::vector<OpCase> PositiveCases() {
  auto cases = Cases();
  for (OpCase& op_case : cases) op_case.in[0].kind = CaseInput::Kind::kPositive;
  return cases;
}
std::vector<OpCase> ProdCases() {
  auto cases = PositiveCases();
  cases.pop_back();
  return cases;
}
std::vector<OpCase> LogSumExpCases() {
  auto cases = Cases();
  cases.push_back({"extreme",
                   {{.kind = CaseInput::Kind::kFloats,
                     .dims = {4, 2},
                     .floats = {1e4, -1e4, -INFINITY, 3, -INFINITY, -INFINITY, INFINITY, 1}},
                    Axes({1})},
                   {},
                   1,
                   false});
  return cases;
}

template <Reduction kind>
OpSchema ReduceSchema(const char* name, const char* formula, std::vector<OpCase> (*cases)(),
                      void (*gradient)(GradientContext&)) {
  OpSchema schema;
  schema.name = name;
  schema.doc = StrCat(
      formula,
      " over `axes` (optional int64 input; none: every axis, or no axis with\n"
      "noop_with_empty_axes = 1); keepdims 1 leaves reduced axes as 1. Blocks accumulate in\n"
      "float32 partial sums and fold in float64. Deterministic.  Source: ONNX ",
      name);
  schema.max_inputs = 2;
  schema.infer = kind == Reduction::kProd  ? InferWithContent<true>
                 : kind == Reduction::kSum ? InferWithContent<false>
                                           : InferShape;
  schema.reference_f32 = ReduceReference<kind, float>;
  schema.reference_f64 = ReduceReference<kind, double>;
  schema.reference_c128 = ReduceReference<kind, std::complex<double>>;
  schema.gradient = gradient;
  schema.cost = [](const Node& n) {
    const double x = static_cast<double>(NumElements(ToDims(n.in(0)->shape)));
    return Cost{x, 4 * x};
  };
  schema.cases = cases;
  schema.nondifferentiable_inputs = {1};
  return schema;
}

}  // namespace

#define WEIR_REDUCE(Name, formula, ...)                                         \
  const OpSchema& Reduce##Name##Schema() {                                      \
    static const OpSchema schema =                                              \
        ReduceSchema<Reduction::k##Name>("Reduce" #Name, formula, __VA_ARGS__); \
    return schema;                                                              \
  }
WEIR_REDUCE(Sum, "y = sum x", SumCases, ReduceSumGradient)
WEIR_REDUCE(Mean, "y = mean x", Cases, ReduceMeanGradient)
WEIR_REDUCE(Max, "y = max x (none: -inf)", ExtremeCases, ReduceExtremeGradient)
WEIR_REDUCE(Min, "y = min x (none: inf)", ExtremeCases, ReduceExtremeGradient)
WEIR_REDUCE(Prod, "y = product of x", ProdCases, nullptr)
WEIR_REDUCE(L2, "y = sqrt(sum x^2)", PositiveCases, ReduceL2Gradient)
WEIR_REDUCE(SumSquare, "y = sum x^2", SumCases, ReduceSumSquareGradient)
WEIR_REDUCE(LogSumExp, "y = ln(sum e^x)", LogSumExpCases, ReduceLogSumExpGradient)
#undef WEIR_REDUCE

}  // namespace weir
