#include "graph/gradient.h"
#include "graph/op_schema.h"
#include "kernels/gemm/reference.h"

namespace weir {
namespace {

void InferGemm(InferContext& c) {
  if (!c.HasShape(0) || !c.HasShape(1)) return c.SetDType(0, c.in(0)->dtype);
  const Shape &a = c.shape(0), &b = c.shape(1);
  const std::string both = StrCat(ToString(a), " and ", ToString(b));
  if (a.size() != 2 || b.size() != 2) c.Fail(StrCat("operands ", both, " must be matrices"));
  const size_t ta = c.node.attributes.Int("transA", 0) != 0,
               tb = c.node.attributes.Int("transB", 0) != 0;
  const Dim &a_inner = a[1 - ta], &b_inner = b[tb];
  if (a_inner.IsConstant() && b_inner.IsConstant() && !(a_inner == b_inner)) {
    c.Fail(StrCat("inner sizes of ", both, " differ (transA ", ta, ", transB ", tb, ")"));
  }
  const Shape y = {a[ta], b[1 - tb]};
  if (c.HasShape(2)) {
    const auto joined = Broadcast(c.shape(2), y);
    if (c.shape(2).size() > 2 || !joined.has_value() || (IsKnown(y) && !Same(*joined, y))) {
      c.Fail(StrCat("C ", ToString(c.shape(2)), " does not broadcast to ", ToString(y)));
    }
  }
  c.SetOutput(0, c.in(0)->dtype, y);
}

// With A' = a or a^T: dA' = alpha dy B'^T, dB' = alpha A'^T dy; each is a Gemm again.
void GemmGradient(GradientContext& g) {
  Value* dy = g.OutputGradient(0);
  if (dy == nullptr) return;
  const auto& attributes = g.node.attributes;
  const int64_t ta = attributes.Int("transA", 0) != 0, tb = attributes.Int("transB", 0) != 0;
  const double alpha = attributes.Float("alpha", 1), beta = attributes.Float("beta", 1);
  const auto product = [&](Value* left, Value* right, int64_t trans_left, int64_t trans_right) {
    return g.builder.Op("Gemm", {left, right},
                        {{"transA", trans_left}, {"transB", trans_right}, {"alpha", alpha}});
  };
  Value *a = g.in(0), *b = g.in(1);
  if (g.Needs(0)) g.Add(0, ta ? product(b, dy, tb, 1) : product(dy, b, 0, 1 - tb));
  if (g.Needs(1)) g.Add(1, tb ? product(dy, a, 1, ta) : product(a, dy, 1 - ta, 0));
  if (g.in(2) != nullptr && g.Needs(2)) {
    g.Add(2, g.builder.Op("GemmBiasGradient", {g.in(2), dy}, {{"beta", beta}}));
  }
}

std::vector<OpCase> GemmCases() {
  const Attributes scaled = {{"alpha", 0.5}, {"beta", 2.0}};
  return {
      {"plain", {{.dims = {5, 7}}, {.dims = {7, 9}}}},
      {"trans_b", {{.dims = {5, 7}}, {.dims = {9, 7}}, {.dims = {9}}}, {{"transB", int64_t{1}}}},
      {"trans_a",
       {{.dims = {7, 5}}, {.dims = {7, 9}}, {.dims = {5, 1}}},
       {{"transA", int64_t{1}}, {"alpha", 0.5}, {"beta", 2.0}}},
      {"both",
       {{.dims = {7, 5}}, {.dims = {9, 7}}, {.dims = {5, 9}}},
       {{"transA", int64_t{1}}, {"transB", int64_t{1}}, {"alpha", 1.5}}},
      {"scalar_c", {{.dims = {5, 7}}, {.dims = {7, 9}}, {.dims = {}}}, scaled},
      {"row_c", {{.dims = {5, 7}}, {.dims = {7, 9}}, {.dims = {1, 9}}}, scaled},
      {"no_inner", {{.dims = {3, 0}}, {.dims = {0, 4}}, {.dims = {4}}}}};
}

}  // namespace

const OpSchema& GemmSchema() {
  static const OpSchema schema{
      .name = "Gemm",
      .domain = "",
      .doc =
          "y = alpha * a' b' + beta * c;  a' = a^T when transA, b' = b^T when transB\n"
          "a', b', y: [M,K], [K,N], [M,N] float; c (optional) broadcasts to y.\n"
          "The product is summed as in MatMul, then scaled and c added in float32.\n"
          "Cost: 2MNK flop.  Source: ONNX Gemm-13.",
      .min_inputs = 2,
      .max_inputs = 3,
      .infer = InferGemm,
      WEIR_REFERENCE(GemmReference),
      .gradient = GemmGradient,
      .cost =
          [](const Node& n) {
            const Dims a = ToDims(n.in(0)->shape), b = ToDims(n.in(1)->shape),
                       y = ToDims(n.out(0)->shape);
            const double ab = static_cast<double>(NumElements(a)),
                         bb = static_cast<double>(NumElements(b));
            const double yb = static_cast<double>(NumElements(y));
            return Cost{2 * ab * static_cast<double>(y[1]), 4 * (ab + bb + yb)};
          },
      .cases = GemmCases};
  return schema;
}

const OpSchema& GemmBiasGradientSchema() {
  static const OpSchema schema{
      .name = "GemmBiasGradient",
      .domain = "ai.weir",
      .doc =
          "dc = beta * dy summed over the axes that c broadcasts\n"
          "inputs c and dy [M,N] of a Gemm; output like c. Sums in float64, rounded once.",
      .min_inputs = 2,
      .max_inputs = 2,
      .infer = [](InferContext& c) { c.SetOutput(0, c.in(0)->dtype, c.shape(0)); },
      WEIR_REFERENCE(GemmBiasGradientReference)};
  return schema;
}

}  // namespace weir
