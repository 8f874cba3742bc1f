#include "graph/gradient.h"
#include "graph/op_schema.h"
#include "kernels/elementwise/infer.h"
#include "kernels/softmax/reference.h"

namespace weir {

namespace {

void InferSoftmax(InferContext& c) {
  InferUnary(c);
  if (c.HasShape(0)) NormalizeAxis(c.node.attributes.Int("axis", -1), Rank(c.shape(0)));
}

template <bool log>
void Gradient(GradientContext& g) {
  if (g.OutputGradient() == nullptr || !g.Needs(0)) return;
  Attributes attributes{{"axis", g.node.attributes.Int("axis", -1)}};
  if (log) attributes.Set("log", int64_t{1});
  g.Add(0, g.builder.Op("SoftmaxGradient", {g.out(), g.OutputGradient()}, attributes));
}

std::vector<OpCase> Cases() {
  const auto axis = [](int64_t a) { return Attributes{{"axis", a}}; };
  return {{"router", {{.dims = {5, 8}}}},
          {"odd", {{.dims = {2, 3, 67}}}, axis(2)},
          {"first", {{.dims = {7, 5}}}, axis(0)},
          {"middle", {{.dims = {2, 19, 5}}}, axis(-2)},
          {"vector", {{.dims = {13}}}},
          {"one", {{.dims = {4, 1}}}, {}, 1, false},
          {"no_rows", {{.dims = {0, 8}}}, {}, 1, false},
          {"wide", {{.dims = {3, 50}, .scale = 1e4}}, {}, 1, false},
          {"large", {{.dims = {4, 1500}, .scale = 3}}},
          {"masked",
           {{.kind = CaseInput::Kind::kFloats,
             .dims = {4, 3},
             .floats = {1, -INFINITY, 2, -INFINITY, -INFINITY, 5, 1e4, -1e4, 0, -INFINITY,
                        -INFINITY, -INFINITY}}},
           {},
           1,
           false}};
}

}  // namespace

const OpSchema& SoftmaxSchema() {
  static const OpSchema schema{
      .name = "Softmax",
      .doc =
          "y = e^(x - m) / sum e^(x - m) along `axis` (-1), m = max x; a row of -inf gives NaN.\n"
          "Saves y. Accumulates in float32, 16 interleaved partial sums. Deterministic.\n"
          "Cost: 5N flop, 2N*sizeof(dtype) bytes.  Source: ONNX Softmax",
      .infer = InferSoftmax,
      .reference_f32 = SoftmaxReference<false, float>,
      .reference_f64 = SoftmaxReference<false, double>,
      .reference_c128 = SoftmaxReference<false, std::complex<double>>,
      .gradient = Gradient<false>,
      .cases = Cases,
      .elementwise = true};
  return schema;
}

const OpSchema& LogSoftmaxSchema() {
  static const OpSchema schema{
      .name = "LogSoftmax",
      .doc =
          "y = x - m - ln(sum e^(x - m)) along `axis` (-1), m = max x. Saves y. Deterministic.\n"
          "Source: ONNX LogSoftmax",
      .infer = InferSoftmax,
      .reference_f32 = SoftmaxReference<true, float>,
      .reference_f64 = SoftmaxReference<true, double>,
      .reference_c128 = SoftmaxReference<true, std::complex<double>>,
      .gradient = Gradient<true>,
      .cases = Cases,
      .elementwise = true};
  return schema;
}

const OpSchema& SoftmaxGradientSchema() {
  static const OpSchema schema{
      .name = "SoftmaxGradient",
      .domain = "ai.weir",
      .doc =
          "dx = y * (dy - sum(dy * y)) along `axis`; log = 1: dx = dy - e^y * sum(dy).\n"
          "inputs y, dy; output dx like y. Deterministic.",
      .min_inputs = 2,
      .max_inputs = 2,
      .infer = InferSoftmax,
      WEIR_REFERENCE(SoftmaxGradientReference),
      .elementwise = true};
  return schema;
}

}  // namespace weir
