#include "graph/gradient.h"
#include "graph/op_schema.h"
#include "kernels/rms_norm/reference.h"

namespace weir {
namespace {

void InferRmsNorm(InferContext& c) {
  if (!c.HasShape(0)) return c.SetDType(0, c.in(0)->dtype);
  const Shape& x = c.shape(0);
  if (x.empty()) c.Fail("x must have at least one axis");
  if (c.HasShape(1) && (c.shape(1).size() != 1 || !(c.shape(1)[0] == x.back()))) {
    c.Fail(StrCat("gamma ", ToString(c.shape(1)), " does not match the last axis of x ", ToString(x)));
  }
  c.SetOutput(0, c.in(0)->dtype, x);
  if (c.node.outputs.size() > 1) c.SetOutput(1, DType::kFloat32, Shape(x.begin(), x.end() - 1));
}

void InferRmsNormGradient(InferContext& c) {
  c.SetOutput(0, c.in(0)->dtype, c.shape(0));
  if (c.node.outputs.size() > 1) c.SetOutput(1, DType::kFloat32, c.shape(1));
}

void RmsNormGradient(GradientContext& g) {
  if (g.OutputGradient(0) == nullptr) return;
  // The forward node gains its second output, rstd, the first time a gradient is wanted.
  if (g.node.outputs.size() < 2) {
    Value* rstd = g.builder.graph().AddValue(g.out(0)->name + ".rstd");
    g.node.outputs.push_back(rstd);
    rstd->producer = &g.node;
    rstd->producer_index = 1;
    InferNode(g.node);
  }
  Value* accumulator = g.Needs(1) ? g.Accumulator(1) : nullptr;
  std::vector<Value*> inputs = {g.in(0), g.in(1), g.out(1), g.OutputGradient(0)};
  if (accumulator != nullptr) inputs.push_back(accumulator);
  const auto grads = g.builder.Ops("RmsNormGradient", inputs, g.Needs(1) ? 2 : 1, g.node.attributes);
  if (g.Needs(0)) g.Add(0, grads[0]);
  if (accumulator != nullptr) {
    g.SetAccumulator(1, grads[1]);
  } else if (g.Needs(1)) {
    g.Add(1, grads[1]);
  }
}

std::vector<OpCase> RmsNormCases() {
  return {{"tiny", {{.dims = {3, 64}}, {.dims = {64}}}, {{"epsilon", 1e-5}}},
          {"odd", {{.dims = {2, 5, 67}}, {.dims = {67}}}, {{"epsilon", 1e-6}}},
          {"epsilon_matters", {{.dims = {3, 64}, .scale = 1e-3}, {.dims = {64}}}, {{"epsilon", 1e-5}}},
          {"no_rows", {{.dims = {0, 8}}, {.dims = {8}}}, {{"epsilon", 1e-5}}}};
}

}  // namespace

const OpSchema& RmsNormSchema() {
  static const OpSchema schema{
      .name = "RmsNorm",
      .domain = "ai.weir",
      .doc =
          "y[n,h] = gamma[h] * x[n,h] * rstd[n],  rstd[n] = 1 / sqrt(mean_h(x[n,h]^2) + epsilon)\n"
          "x, y: [..., H] float; gamma: [H]; output 1 (optional) rstd: [...] float32, saved for backward.\n"
          "Accumulates in float32, in 16 interleaved sums over h. Deterministic.\n"
          "Cost: 4NH flop, 2NH*sizeof(dtype) bytes.  Source: Zhang & Sennrich 2019, arXiv:1910.07467, eq. (4).",
      .min_inputs = 2, .max_inputs = 2, .min_outputs = 1, .max_outputs = 2,
      .infer = InferRmsNorm,
      WEIR_REFERENCE(RmsNormReference),
      .gradient = RmsNormGradient,
      .cost = [](const Node& n) {
        const double count = static_cast<double>(NumElements(ToDims(n.in(0)->shape)));
        return Cost{4 * count, 8 * count};
      },
      .cases = RmsNormCases};
  return schema;
}

const OpSchema& RmsNormGradientSchema() {
  static const OpSchema schema{
      .name = "RmsNormGradient",
      .domain = "ai.weir",
      .doc =
          "dx = rstd*gamma*dy - x*rstd^3/H*sum_h(gamma*dy*x);  dgamma (+)= sum_n dy*x*rstd\n"
          "inputs x, gamma, rstd, dy, accumulator?; outputs dx, dgamma?. With an accumulator input,\n"
          "dgamma is that buffer and is added to (+=). Rows are summed in blocks of 4096, each from\n"
          "zero in float32, blocks folded in order. Deterministic.",
      .min_inputs = 4, .max_inputs = 5, .min_outputs = 1, .max_outputs = 2,
      .infer = InferRmsNormGradient,
      WEIR_REFERENCE(RmsNormGradientReference),
      .aliases = {{1, 4}}};
  return schema;
}

}  // namespace weir
