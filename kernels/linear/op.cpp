#include "graph/gradient.h"
#include "graph/op_schema.h"
#include "kernels/linear/reference.h"

namespace weir {
namespace {

// Whether two dims are known to disagree: both constant and different.
bool Differ(const Dim& a, const Dim& b) { return a.IsConstant() && b.IsConstant() && !(a == b); }

void InferLinear(InferContext& c) {
  if (!c.HasShape(0) || !c.HasShape(1)) return c.SetDType(0, c.in(0)->dtype);
  const Shape &x = c.shape(0), &weight = c.shape(1);
  if (x.empty() || weight.size() != 2 || Differ(x.back(), weight[1])) {
    c.Fail(StrCat("x ", ToString(x), " does not match weight ", ToString(weight),
                  "; expected x [...,K] and weight [M,K]"));
  }
  if (c.HasShape(2) && (c.shape(2).size() != 1 || Differ(c.shape(2)[0], weight[0]))) {
    c.Fail(StrCat("bias ", ToString(c.shape(2)), " does not match weight ", ToString(weight),
                  "; expected [M]"));
  }
  Shape y = x;
  y.back() = weight[0];
  c.SetOutput(0, c.in(0)->dtype, std::move(y));
}

void InferLinearWeightGradient(InferContext& c) {
  const Shape &x = c.shape(0), &dy = c.shape(1);
  if (x.empty() || x.size() != dy.size()) {
    c.Fail(StrCat("x ", ToString(x), " and dy ", ToString(dy), " do not have the same rank"));
  }
  for (size_t i = 0; i + 1 < x.size(); ++i) {
    if (Differ(x[i], dy[i])) {
      c.Fail(StrCat("x ", ToString(x), " and dy ", ToString(dy), " have different tokens"));
    }
  }
  const Shape dw = {dy.back(), x.back()};
  if (c.HasShape(2) && !Same(c.shape(2), dw)) {
    c.Fail(StrCat("accumulator ", ToString(c.shape(2)), ", expected ", ToString(dw)));
  }
  c.SetOutput(0, DType::kFloat32, dw);
}

void InferBiasGradient(InferContext& c) {
  const Shape& dy = c.shape(0);
  if (dy.empty()) c.Fail("dy must have at least one axis");
  if (c.HasShape(1) && !Same(c.shape(1), {dy.back()})) {
    c.Fail(StrCat("accumulator ", ToString(c.shape(1)), " does not match dy ", ToString(dy)));
  }
  c.SetOutput(0, DType::kFloat32, {dy.back()});
}

// Emits op(inputs..., accumulator?) for the parameter at `index`.
void AddParameterGradient(GradientContext& g, size_t index, const char* op,
                          std::vector<Value*> inputs) {
  if (!g.Needs(index)) return;
  Value* accumulator = g.Accumulator(index);
  if (accumulator == nullptr) return g.Add(index, g.builder.Op(op, inputs));
  inputs.push_back(accumulator);
  g.SetAccumulator(index, g.builder.Op(op, inputs));
}

void LinearGradient(GradientContext& g) {
  Value* dy = g.OutputGradient(0);
  if (dy == nullptr) return;
  if (g.Needs(0)) g.Add(0, g.builder.Op("MatMul", {dy, g.in(1)}));
  AddParameterGradient(g, 1, "LinearWeightGradient", {g.in(0), dy});
  if (g.in(2) != nullptr) AddParameterGradient(g, 2, "BiasGradient", {dy});
}

std::vector<OpCase> LinearCases() {
  return {{"plain", {{.dims = {2, 5, 67}}, {.dims = {33, 67}}}},
          {"bias", {{.dims = {7, 64}}, {.dims = {35, 64}}, {.dims = {35}}}},
          {"vector", {{.dims = {19}}, {.dims = {5, 19}}, {.dims = {5}}}},
          {"wide_k", {{.dims = {3, 1030}}, {.dims = {9, 1030}}}},
          {"no_rows", {{.dims = {0, 8}}, {.dims = {4, 8}}, {.dims = {4}}}},
          {"no_channels", {{.dims = {3, 0}}, {.dims = {4, 0}}, {.dims = {4}}}},
          {"two_blocks", {{.dims = {4100, 5}}, {.dims = {3, 5}}, {.dims = {3}}}}};
}

std::vector<OpCase> WeightGradientCases() {
  return {{"accumulate", {{.dims = {2, 9, 21}}, {.dims = {2, 9, 17}}, {.dims = {17, 21}}}},
          {"blocks", {{.dims = {8200, 3}}, {.dims = {8200, 7}}, {.dims = {7, 3}}}},
          {"no_rows", {{.dims = {0, 3}}, {.dims = {0, 7}}}}};
}

std::vector<OpCase> BiasGradientCases() {
  return {{"accumulate", {{.dims = {2, 9, 70}}, {.dims = {70}}}},
          {"blocks", {{.dims = {8200, 3}}}},
          {"no_rows", {{.dims = {0, 3}}}}};
}

Cost MatrixCost(double rows, double m, double k) {
  return {2 * rows * m * k, 4 * (rows * (m + k) + m * k)};
}

}  // namespace

const OpSchema& LinearSchema() {
  static const OpSchema schema{
      .name = "Linear",
      .domain = "ai.weir",
      .doc =
          "y[n,m] = sum_k x[n,k] * weight[m,k] + bias[m]\n"
          "x: [..., K] float; weight: [M, K] (PyTorch's [out, in]); bias (optional): [M]; y: [..., "
          "M].\n"
          "Float32 in blocks of 256 over k, each a fused-multiply-add chain from zero, "
          "left-folded; bias\n"
          "last. A row has the same bits whatever the other rows. Gradient: dx = dy weight,\n"
          "LinearWeightGradient, BiasGradient.\n"
          "Cost: 2NMK flop, 4(NK + MK + NM) bytes.  Source: torch.nn.Linear.",
      .min_inputs = 2,
      .max_inputs = 3,
      .infer = InferLinear,
      WEIR_REFERENCE(LinearReference),
      .gradient = LinearGradient,
      .cost =
          [](const Node& n) {
            const Dims y = ToDims(n.out(0)->shape), weight = ToDims(n.in(1)->shape);
            const double rows = static_cast<double>(NumElements(Dims(y.begin(), y.end() - 1)));
            return MatrixCost(rows, static_cast<double>(weight[0]), static_cast<double>(weight[1]));
          },
      .cases = LinearCases};
  return schema;
}

const OpSchema& LinearWeightGradientSchema() {
  static const OpSchema schema{
      .name = "LinearWeightGradient",
      .domain = "ai.weir",
      .doc =
          "dW[m,k] = acc[m,k] + sum_n dy[n,m] * x[n,k]\n"
          "x: [..., K]; dy: [..., M]; acc (optional): [M, K] float32, updated in place (+=); dW: "
          "[M, K].\n"
          "Token blocks of 4096 rows in order, each summed from zero in float32, left fold "
          "starting from\n"
          "acc. Deterministic; the same bits whatever the thread count. Cost: 2NMK flop.",
      .min_inputs = 2,
      .max_inputs = 3,
      .infer = InferLinearWeightGradient,
      WEIR_REFERENCE(LinearWeightGradientReference),
      .cost =
          [](const Node& n) {
            const Dims x = ToDims(n.in(0)->shape), dw = ToDims(n.out(0)->shape);
            const double rows = static_cast<double>(NumElements(Dims(x.begin(), x.end() - 1)));
            return MatrixCost(rows, static_cast<double>(dw[0]), static_cast<double>(dw[1]));
          },
      .cases = WeightGradientCases,
      .aliases = {{0, 2}}};
  return schema;
}

const OpSchema& BiasGradientSchema() {
  static const OpSchema schema{
      .name = "BiasGradient",
      .domain = "ai.weir",
      .doc =
          "db[m] = acc[m] + sum_n dy[n,m]\n"
          "dy: [..., M]; acc (optional): [M] float32, updated in place (+=); db: [M].\n"
          "Token blocks of 4096 rows in order, each summed from zero in float32 in row order, left "
          "fold\n"
          "starting from acc. Deterministic. Cost: NM flop, 4NM bytes.",
      .min_inputs = 1,
      .max_inputs = 2,
      .infer = InferBiasGradient,
      WEIR_REFERENCE(BiasGradientReference),
      .cost =
          [](const Node& n) {
            const double count = static_cast<double>(NumElements(ToDims(n.in(0)->shape)));
            return Cost{count, 4 * count};
          },
      .cases = BiasGradientCases,
      .aliases = {{0, 1}}};
  return schema;
}

}  // namespace weir
