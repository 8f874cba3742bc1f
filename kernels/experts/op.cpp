#include "graph/gradient.h"
#include "graph/op_schema.h"
#include "kernels/common/dims.h"
#include "kernels/common/saved_output.h"
#include "kernels/experts/cases.h"
#include "kernels/experts/reference.h"
#include "kernels/experts/schema.h"

namespace weir {
namespace {

void CheckShapes(InferContext& c) {
  const auto rank = [&](size_t i, size_t want, const char* what) {
    if (c.HasShape(i) && c.shape(i).size() != want) {
      c.Fail(StrCat("C1: ", what, " must have rank ", want, "; got ", ToString(c.shape(i))));
    }
    return c.HasShape(i);
  };
  if (!rank(0, 2, "x") || !rank(1, 2, "ids") || !rank(2, 2, "weights") || !rank(3, 3, "gate_up") ||
      !rank(4, 3, "down")) {
    return;
  }
  const Shape &x = c.shape(0), &ids = c.shape(1), &weights = c.shape(2), &gate_up = c.shape(3),
              &down = c.shape(4);
  if (Differ(ids[0], x[0]) || Differ(weights[0], x[0]) || Differ(weights[1], ids[1])) {
    c.Fail(StrCat("C2: x ", ToString(x), ", ids ", ToString(ids), ", weights ", ToString(weights),
                  " must be [N,H], [N,K], [N,K]"));
  }
  if (Differ(gate_up[2], x[1]) || Differ(down[1], x[1]) || Differ(down[0], gate_up[0]) ||
      Differ(gate_up[1], Dim(2) * down[2])) {
    c.Fail(StrCat("C3: x ", ToString(x), ", gate_up ", ToString(gate_up), ", down ", ToString(down),
                  " must be [N,H], [E,2I,H], [E,H,I]"));
  }
  if (rank(5, 2, "gate_up_bias") &&
      (Differ(c.shape(5)[0], gate_up[0]) || Differ(c.shape(5)[1], gate_up[1]))) {
    c.Fail(StrCat("C4: gate_up_bias ", ToString(c.shape(5)), " must be [E,2I]"));
  }
  if (rank(6, 2, "down_bias") &&
      (Differ(c.shape(6)[0], down[0]) || Differ(c.shape(6)[1], down[1]))) {
    c.Fail(StrCat("C4: down_bias ", ToString(c.shape(6)), " must be [E,H]"));
  }
}

}  // namespace

void InferExperts(InferContext& c) {
  c.SetDType(0, c.in(0)->dtype);
  if (c.in(1)->dtype != DType::kInt64 && c.in(1)->dtype != DType::kUndefined) {
    c.Fail(StrCat("C1: ids must be int64; got ", DTypeName(c.in(1)->dtype)));
  }
  const ExpertActivation activation(c.node.attributes);  // C5
  if (!(activation.limit > 0)) c.Fail("C5: limit must be positive; leave it out for none");
  CheckShapes(c);
  if (c.HasShape(0)) c.SetOutput(0, c.in(0)->dtype, c.shape(0));
}

void InferExpertsGradient(InferContext& c) {
  c.SetOutput(0, c.in(0)->dtype, c.shape(0));
  c.SetOutput(1, c.in(2)->dtype, c.shape(2));
  for (size_t o = 2; o < 6; ++o) {
    if (c.HasShape(o + 1)) c.SetOutput(o, DType::kFloat32, c.shape(o + 1));
  }
}

void EmitExpertsGradient(GradientContext& g, std::string_view op, Value* saved) {
  if (g.OutputGradient(0) == nullptr) return;
  std::vector<Value*> inputs;
  for (size_t i = 0; i < 7; ++i) inputs.push_back(g.in(i));
  inputs.push_back(g.OutputGradient(0));
  Value* accumulators[4] = {};
  const auto wanted = [&](size_t i) { return g.in(i) != nullptr && g.Needs(i); };
  for (size_t p = 0; p < 4; ++p) {
    accumulators[p] = wanted(3 + p) ? g.Accumulator(3 + p) : nullptr;
    inputs.push_back(accumulators[p]);
  }
  if (saved != nullptr) inputs.push_back(saved);
  while (inputs.back() == nullptr) inputs.pop_back();
  const auto grads = g.builder.Ops(op, inputs, 6, g.node.attributes);
  if (g.Needs(0)) g.Add(0, grads[0]);
  if (g.Needs(2)) g.Add(2, grads[1]);
  for (size_t p = 0; p < 4; ++p) {
    if (!wanted(3 + p)) {
      DropOutput(g.builder.graph(), grads[2 + p]);
    } else if (accumulators[p] != nullptr) {
      g.SetAccumulator(3 + p, grads[2 + p]);
    } else {
      g.Add(3 + p, grads[2 + p]);
    }
  }
}

Cost ExpertsCost(const Node& n, double passes) {
  const double routes = static_cast<double>(NumElements(ToDims(n.in(1)->shape)));
  const Dims down = ToDims(n.in(4)->shape);
  const double weights = 3 * static_cast<double>(NumElements(down));
  const double per_route = 6 * static_cast<double>(down[1] * down[2]);
  return {passes * routes * per_route,
          passes * 4 * (weights + routes * static_cast<double>(2 * down[1] + 3 * down[2]))};
}

const OpSchema& ExpertsSchema() {
  static const OpSchema schema{
      .name = "Experts",
      .domain = "ai.weir",
      .doc = R"(e = ids[n,k];  [g;u] = gate_up[e] x_n + gate_up_bias[e]  (gate rows first)
g = min(g, limit);  u = clamp(u, -limit, limit);  a = act(g) * (u + beta)
y_n = sum_k weights[n,k] * (down[e] a + down_bias[e])
activation: swiglu (act(g) = g*sigmoid(alpha*g)), silu (alpha = 1), gelu (erf), gelu_tanh, relu.
x [N,H], ids int64 [N,K], weights [N,K], gate_up [E,2I,H], down [E,H,I], gate_up_bias? [E,2I],
down_bias? [E,H]; y [N,H]. Saved for backward: nothing (the gradient recomputes).
Accumulates in float32; slots 0..K-1 are folded in slot order. Deterministic: a row has the
same bits whatever rows it is grouped with.
C1 ranks and int64 ids. C2 [N,H], [N,K], [N,K] agree. C3 weight shapes agree. C4 bias shapes.
C5 known activation, limit > 0. C6 ids in [0,E), else an error with token, slot and id.
Cost: 6*N*K*H*I flop.  Source: Shazeer et al. 2017, arXiv:1701.06538, eq. (1); Shazeer 2020,
arXiv:2002.05202.)",
      .min_inputs = 5,
      .max_inputs = 7,
      .infer = InferExperts,
      WEIR_REFERENCE(ExpertsReference),
      .gradient = [](GradientContext& g) { EmitExpertsGradient(g, "ExpertsGradient", nullptr); },
      .cost = [](const Node& n) { return ExpertsCost(n, 1); },
      .cases = ExpertsCases,
      .nondifferentiable_inputs = {1}};
  return schema;
}

const OpSchema& ExpertsGradientSchema() {
  static const OpSchema schema{
      .name = "ExpertsGradient",
      .domain = "ai.weir",
      .doc =
          R"(With row = down[e] a + down_bias[e], dout = weights[n,k] * dy_n, da = down[e]^T dout and [dg;du]
the gradient of the activation (a clamp passes 1 inside its limit, 0 outside):
dx_n (=) sum_k gate_up[e]^T [dg;du], dweights[n,k] (=) dy_n . row, dgate_up[e] (+)= [dg;du] x_n^T,
ddown[e] (+)= dout a^T, dgate_up_bias[e] (+)= [dg;du], ddown_bias[e] (+)= dout
inputs x, ids, weights, gate_up, down, gate_up_bias?, down_bias?, dy, four accumulators?; outputs
dx, dweights, dgate_up?, ddown?, dgate_up_bias?, ddown_bias?. With an accumulator the output is
that buffer and is added to (+=); experts without rows keep theirs.
Recomputes the forward pass. Tokens form `leaves` (16) strided leaves, leaf l = {l, l+leaves, ..}.
Weight gradients sum an expert's routes in canonical order (leaf, token, slot), cut into units at
leaf edges and every `unit_rows` (4096) rows: each unit from zero in float32, units folded in
order. dx folds slots 0..K-1. Deterministic for any threads.
Cost: 8/3 forward.  Source: derivative of Experts; Shazeer et al. 2017, arXiv:1701.06538.)",
      .min_inputs = 8,
      .max_inputs = 12,
      .min_outputs = 2,
      .max_outputs = 6,
      .infer = InferExpertsGradient,
      WEIR_REFERENCE(ExpertsGradientReference),
      .cost = [](const Node& n) { return ExpertsCost(n, 8.0 / 3); },
      .aliases = {{2, 8}, {3, 9}, {4, 10}, {5, 11}}};
  return schema;
}

}  // namespace weir
