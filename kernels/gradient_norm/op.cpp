#include "graph/op_schema.h"
#include "kernels/gradient_norm/reference.h"

namespace weir {
namespace {

void InferGradientNorm(InferContext& c) { c.SetOutput(0, DType::kFloat64, {}); }

void InferClipCoefficient(InferContext& c) {
  const double max_norm = c.node.attributes.Float("max_norm", 0);
  if (!(max_norm >= 0))
    c.Fail(StrCat("C1: max_norm is ", max_norm, ", expected >= 0 (0 = no clipping)"));
  c.SetOutput(0, DType::kFloat32, {});
}

Cost GradientNormCost(const Node& n) {
  double count = 0;
  for (const Value* input : n.inputs)
    count += static_cast<double>(NumElements(ToDims(input->shape)));
  return {2 * count, 4 * count};
}

std::vector<OpCase> GradientNormCases() {
  return {{"one", {{.dims = {3, 5}}}},
          {"several",
           {{.dims = {7, 9}}, {.dims = {1}}, {.dims = {65, 3}}, {.dims = {}}, {.dims = {0, 4}}}},
          {"blocks", {{.dims = {3, 65537}}, {.dims = {65536}}, {.dims = {65535}}}},
          {"zeros", {{.dims = {4}, .scale = 0}}}};
}

std::vector<OpCase> ClipCoefficientCases() {
  const auto norm = [](double value) {
    return CaseInput{.kind = CaseInput::Kind::kFloats, .floats = {value}, .dtype = DType::kFloat64};
  };
  constexpr double kInf = std::numeric_limits<double>::infinity();
  return {
      {"clips", {norm(5)}, {{"max_norm", 1.0}}},       {"below", {norm(0.5)}, {{"max_norm", 1.0}}},
      {"zero", {norm(0)}, {{"max_norm", 1.0}}},        {"off", {norm(5)}, {{"max_norm", 0.0}}},
      {"infinite", {norm(kInf)}, {{"max_norm", 1.0}}}, {"infinite_off", {norm(kInf)}}};
}

}  // namespace

const OpSchema& GradientNormSchema() {
  static const OpSchema schema{.name = "GradientNorm",
                               .domain = "ai.weir",
                               .doc = R"(norm = sqrt(sum over all gradients and elements of g^2)
inputs: float32 accumulators of any shape, or float64 sums of an accumulator's blocks (BlockSquares); output float64 scalar.
Accumulates in float64 over fixed blocks of 2^16 elements; a fixed binary tree over the blocks of
each accumulator, then over accumulators in input order. Deterministic for any threads.
Inputs listed in `sharded` are shards: their sums are added over the `ranks` ranks of `group` by the
same tree first, so that every rank has the norm of the whole. Without ranks: their own.
Cost: 2 flop and 4 bytes per element.  Source: torch.nn.utils.clip_grad_norm_ (norm type 2).)",
                               .min_inputs = 1,
                               .max_inputs = -1,
                               .infer = InferGradientNorm,
                               WEIR_REFERENCE(GradientNormReference),
                               .cost = GradientNormCost,
                               .cases = GradientNormCases};
  return schema;
}

const OpSchema& ClipCoefficientSchema() {
  static const OpSchema schema{
      .name = "ClipCoefficient",
      .domain = "ai.weir",
      .doc =
          R"(coefficient = min(1, max_norm / (norm + 1e-6)); 1 when max_norm = 0; NaN when norm is not finite,
which makes the update change nothing (never a negative sentinel).
input float64 scalar, output float32 scalar; computed in float64. Deterministic.
C1 max_norm >= 0.  Source: torch.nn.utils.clip_grad_norm_.)",
      .infer = InferClipCoefficient,
      WEIR_REFERENCE(ClipCoefficientReference),
      .cases = ClipCoefficientCases};
  return schema;
}

}  // namespace weir
