#include "graph/gradient.h"
#include "graph/op_schema.h"
#include "kernels/rotary/reference.h"

namespace weir {
namespace {

void InferRotaryTable(InferContext& c) {
  const auto half = static_cast<int64_t>(c.node.attributes.Floats("inv_freq").size());
  if (half == 0) c.Fail("attribute inv_freq is missing or empty");
  const std::vector<Dim>* length = c.content(0);
  if (length != nullptr && length->size() != 1) c.Fail("length must have one element");
  const Dim rows = length != nullptr ? (*length)[0] : Dim::Unknown();
  c.SetOutput(0, DType::kFloat32, {rows, half});
  if (c.node.outputs.size() > 1) c.SetOutput(1, DType::kFloat32, {rows, half});
}

// Serves Rotary and RotaryGradient.
void InferRotary(InferContext& c) {
  if (!c.HasShape(0)) return c.SetDType(0, c.in(0)->dtype);
  const Shape& x = c.shape(0);
  if (x.size() != 4) c.Fail(StrCat("x ", ToString(x), ", expected [B,S,h,D]"));
  for (size_t table : {1, 2}) {
    if (!c.HasShape(table)) continue;
    const Shape& t = c.shape(table);
    const bool constant = t.size() == 2 && t[1].IsConstant() && x[3].IsConstant();
    if (t.size() != 2 || (constant && 2 * t[1].Constant() > x[3].Constant()) ||
        (t[0].IsConstant() && x[1].IsConstant() && !(t[0] == x[1]))) {
      c.Fail(StrCat(table == 1 ? "cos " : "sin ", ToString(t), " does not match x ", ToString(x),
                    "; expected [S,d/2] with d <= D"));
    }
  }
  c.SetOutput(0, c.in(0)->dtype, x);
}

void RotaryGradient(GradientContext& g) {
  Value* dy = g.OutputGradient(0);
  if (dy == nullptr || !g.Needs(0)) return;
  g.Add(0, g.builder.Op("RotaryGradient", {dy, g.in(1), g.in(2)}, g.node.attributes));
}

Cost RotaryCost(const Node& n) {
  const double count = static_cast<double>(NumElements(ToDims(n.out(0)->shape)));
  return {3 * count, 8 * count};
}

std::vector<OpCase> RotaryTableCases() {
  const CaseInput length{.kind = CaseInput::Kind::kInts, .dims = {}, .ints = {33}};
  const CaseInput listed{.kind = CaseInput::Kind::kInts, .dims = {1}, .ints = {3}};
  return {
      {"plain", {length}, {{"inv_freq", std::vector<double>{1.0, 0.25f, 0.1f}}}, 2, false},
      {"scaled", {listed}, {{"inv_freq", std::vector<double>{0.7f}}, {"scale", 1.375}}, 2, false},
      {"part", {listed}, {{"inv_freq", std::vector<double>{0.7f, 0.01f}}, {"part", int64_t{2}}}, 2, false}};
}

std::vector<OpCase> RotaryCases() {
  const auto make = [](const char* name, int64_t width, int64_t half, int64_t in, int64_t out) {
    return OpCase{name,
                  {{.dims = {2, 3, 5, width}}, {.dims = {3, half}}, {.dims = {3, half}}},
                  {{"input_interleaved", in}, {"output_interleaved", out}}};
  };
  return {make("half", 16, 8, 0, 0),
          make("interleaved", 16, 8, 1, 1),
          make("interleaved_in", 16, 8, 1, 0),
          make("interleaved_out", 16, 8, 0, 1),
          make("partial", 19, 5, 0, 0),
          make("partial_interleaved", 18, 5, 1, 0),
          {"no_tokens", {{.dims = {0, 3, 2, 4}}, {.dims = {3, 2}}, {.dims = {3, 2}}}}};
}

}  // namespace

const OpSchema& RotaryTableSchema() {
  static const OpSchema schema{
      .name = "RotaryTable",
      .domain = "ai.weir",
      .doc =
          "cos[r,i] = scale * cos(float32(p * inv_freq[i])), sin likewise, p = part*S + r, r in [0,S)\n"
          "length: int64 scalar or [1], S; attributes inv_freq (d/2 floats), scale (1.0), part (0); "
          "cos, sin:\n"
          "[S,d/2] float32. The angle is rounded to float32 as the frameworks do; cosine and scale "
          "in\n"
          "float64, rounded once. Deterministic.",
      .min_inputs = 1,
      .max_inputs = 1,
      .min_outputs = 1,
      .max_outputs = 2,
      .infer = InferRotaryTable,
      WEIR_REFERENCE(RotaryTableReference),
      .cases = RotaryTableCases,
      .nondifferentiable_inputs = {0}};
  return schema;
}

const OpSchema& RotarySchema() {
  static const OpSchema schema{
      .name = "Rotary",
      .domain = "ai.weir",
      .doc =
          "y1 = x1*cos - x2*sin, y2 = x2*cos + x1*sin on the first d channels, the rest is copied\n"
          "x, y: [B,S,h,D] float; cos, sin: [S,d/2]. Pairs (x1,x2) are channels (i, i+d/2), or "
          "(2i, 2i+1)\n"
          "when input_interleaved; output_interleaved says the same of y. Each product is rounded "
          "to\n"
          "float32 before the sum. No gradient to cos and sin. Cost: 3BShD flop, 8BShD bytes.\n"
          "Source: Su et al. 2021, arXiv:2104.09864.",
      .min_inputs = 3,
      .max_inputs = 3,
      .infer = InferRotary,
      WEIR_REFERENCE(RotaryReference),
      .gradient = RotaryGradient,
      .cost = RotaryCost,
      .cases = RotaryCases,
      .nondifferentiable_inputs = {1, 2}};
  return schema;
}

const OpSchema& RotaryGradientSchema() {
  static const OpSchema schema{
      .name = "RotaryGradient",
      .domain = "ai.weir",
      .doc =
          "dx1 = dy1*cos + dy2*sin, dx2 = dy2*cos - dy1*sin on the first d channels, the rest is "
          "copied\n"
          "dy, dx: [B,S,h,D] float; cos, sin: [S,d/2]; attributes are those of the Rotary node.",
      .min_inputs = 3,
      .max_inputs = 3,
      .infer = InferRotary,
      WEIR_REFERENCE(RotaryGradientReference),
      .cost = RotaryCost,
      .nondifferentiable_inputs = {1, 2}};
  return schema;
}

}  // namespace weir
