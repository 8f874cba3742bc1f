#include "graph/gradient.h"
#include "graph/op_schema.h"
#include "kernels/common/index_map.h"
#include "kernels/layer_norm/reference.h"

namespace weir {

NormView ViewNorm(const Dims& dims, int64_t axis) {
  const int64_t rank = Rank(dims);
  axis = NormalizeAxis(axis, rank);
  NormView view;
  for (int64_t k = 0; k < rank; ++k) {
    const int64_t dim = dims[static_cast<size_t>(k)];
    (k < axis ? view.rows : view.length) *= dim;
    view.statistics.push_back(k < axis ? dim : 1);
    if (k >= axis) view.inner.push_back(dim);
  }
  return view;
}

namespace {

// Outputs after the first are row statistics, float32.
void InferNorm(InferContext& c) {
  c.SetDType(0, c.in(0)->dtype);
  for (size_t o = 1; o < c.node.outputs.size(); ++o) c.SetDType(o, DType::kFloat32);
  if (!c.HasShape(0)) return;
  const Shape& x = c.shape(0);
  const int64_t axis = NormalizeAxis(c.node.attributes.Int("axis", -1), Rank(x));
  const Shape inner(x.begin() + axis, x.end());
  for (size_t i = 1; i < c.node.inputs.size(); ++i) {
    if (!c.HasShape(i)) continue;
    const auto broadcast = Broadcast(inner, c.shape(i));
    if (!broadcast || broadcast->size() != inner.size() ||
        (IsKnown(inner) && IsKnown(*broadcast) && !Same(*broadcast, inner))) {
      c.Fail(StrCat("input ", i, " of shape ", ToString(c.shape(i)),
                    " does not broadcast to the normalised axes ", ToString(inner)));
    }
  }
  c.SetOutput(0, c.in(0)->dtype, x);
  Shape statistics = x;
  std::fill(statistics.begin() + axis, statistics.end(), Dim(1));
  for (size_t o = 1; o < c.node.outputs.size(); ++o) c.SetOutput(o, DType::kFloat32, statistics);
}

void InferLayerNormGradient(InferContext& c) {
  const Shape& x = c.shape(0);
  const Shape inner(x.begin() + NormalizeAxis(c.node.attributes.Int("axis", -1), Rank(x)), x.end());
  if (!(Product(c.shape(1)) == Product(inner))) {
    c.Fail(StrCat("scale ", ToString(c.shape(1)), " must have the normalised shape ",
                  ToString(inner)));
  }
  c.SetOutput(0, c.in(0)->dtype, x);
  for (size_t o = 1; o < c.node.outputs.size(); ++o) c.SetOutput(o, DType::kFloat32, c.shape(1));
}

// Works from x alone: graphs with one and with three outputs give equal gradients. // IMP-17
void LayerNormGradient(GradientContext& g) {
  if (g.OutputGradient(0) == nullptr) return;
  const int outputs = g.Needs(2) ? 3 : g.Needs(1) ? 2 : 1;
  std::vector<Value*> inputs = {g.in(0), g.in(1), g.OutputGradient(0)};
  std::vector<Value*> accumulators = {nullptr, nullptr, nullptr};
  for (int i = 1; i < outputs; ++i) {
    const auto at = static_cast<size_t>(i);
    if (g.Needs(at)) accumulators[at] = g.Accumulator(at);
    inputs.push_back(accumulators[at]);
  }
  const auto grads = g.builder.Ops("LayerNormGradient", inputs, outputs,
                                   {{"axis", g.node.attributes.Int("axis", -1)},
                                    {"epsilon", g.node.attributes.Float("epsilon", 1e-5f)}});
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!g.Needs(i)) continue;
    if (accumulators[i] != nullptr) {
      g.SetAccumulator(i, grads[i]);
    } else {
      g.Add(i, grads[i]);
    }
  }
}

const Attributes kTight{{"epsilon", 1e-6}};

std::vector<OpCase> NormCases() {
  return {{"tiny", {{.dims = {3, 64}}, {.dims = {64}}}},
          {"odd", {{.dims = {2, 5, 67}}, {.dims = {67}}}, kTight},
          {"two_axes", {{.dims = {4, 3, 5}}, {.dims = {3, 5}}}, {{"axis", int64_t{1}}}},
          {"negative_axis", {{.dims = {4, 3, 5}}, {.dims = {3, 5}}}, {{"axis", int64_t{-2}}}},
          {"no_rows", {{.dims = {0, 8}}, {.dims = {8}}}, {}, 1, false}};
}
std::vector<OpCase> LayerNormCases() {
  auto cases = NormCases();
  cases.push_back({"beta", {{.dims = {3, 37}}, {.dims = {37}}, {.dims = {37}}}});
  cases.push_back(
      {"three_outputs", {{.dims = {2, 3, 37}}, {.dims = {37}}, {.dims = {37}}}, {}, 3, false});
  cases.push_back(
      {"broadcast_scale", {{.dims = {2, 3, 5}}, {.dims = {5}}}, {{"axis", int64_t{1}}}, 1, false});
  cases.push_back(
      {"epsilon_matters", {{.dims = {3, 64}, .scale = 1e-3}, {.dims = {64}}, {.dims = {64}}}});
  return cases;
}
std::vector<OpCase> RmsCases() {
  auto cases = NormCases();
  cases.push_back({"scalar_scale", {{.dims = {3, 8}}, {.dims = {1}}}});
  return cases;
}
std::vector<OpCase> SimplifiedCases() {
  auto cases = NormCases();
  cases.push_back({"statistics", {{.dims = {3, 8}}, {.dims = {8}}}, {}, 2});
  return cases;
}

constexpr const char* kRmsDoc =
    "y = x * r * scale, r = 1 / sqrt(mean(x^2) + epsilon) over the axes from `axis` (-1) on; "
    "epsilon 1e-5.\n"
    "Rewritten to ai.weir::RmsNorm for training.  Source: ONNX RMSNormalization-23";

}  // namespace

const OpSchema& LayerNormalizationSchema() {
  static const OpSchema schema{
      .name = "LayerNormalization",
      .doc =
          "y = (x - mean) * r * scale + bias, r = 1 / sqrt(var + epsilon), over the axes from "
          "`axis` (-1) on.\n"
          "inputs x, scale, bias?; outputs y, mean?, r? ([.., 1], float32). Nothing is saved: the "
          "backward\n"
          "recomputes mean and r. Accumulates in float32, 16 partial sums. Deterministic.\n"
          "Source: Ba et al. 2016, arXiv:1607.06450; ONNX LayerNormalization-17",
      .min_inputs = 2,
      .max_inputs = 3,
      .max_outputs = 3,
      .infer = InferNorm,
      .reference_f32 = NormReference<true, float>,
      .reference_f64 = NormReference<true, double>,
      .reference_c128 = NormReference<true, std::complex<double>>,
      .gradient = LayerNormGradient,
      .cases = LayerNormCases};
  return schema;
}

const OpSchema& RMSNormalizationSchema() {
  static const OpSchema schema{.name = "RMSNormalization",
                               .doc = kRmsDoc,
                               .min_inputs = 2,
                               .max_inputs = 2,
                               .infer = InferNorm,
                               .reference_f32 = NormReference<false, float>,
                               .reference_f64 = NormReference<false, double>,
                               .reference_c128 = NormReference<false, std::complex<double>>,
                               .cases = RmsCases};
  return schema;
}

const OpSchema& SimplifiedLayerNormalizationSchema() {
  static const OpSchema schema{.name = "SimplifiedLayerNormalization",
                               .doc = kRmsDoc,
                               .min_inputs = 2,
                               .max_inputs = 2,
                               .max_outputs = 2,
                               .infer = InferNorm,
                               .reference_f32 = NormReference<false, float>,
                               .reference_f64 = NormReference<false, double>,
                               .reference_c128 = NormReference<false, std::complex<double>>,
                               .cases = SimplifiedCases};
  return schema;
}

const OpSchema& LayerNormGradientSchema() {
  static const OpSchema schema{.name = "LayerNormGradient",
                               .domain = "ai.weir",
                               .doc =
                                   "h = (x - mean) r, g = scale dy: dx = r (g - mean(g) - h mean(g "
                                   "h)), dscale (+)= sum dy h,\n"
                                   "dbias (+)= sum dy. inputs x, scale, dy, dscale accumulator?, "
                                   "dbias accumulator?; with an\n"
                                   "accumulator the output is that buffer (+=). Token blocks as in "
                                   "common/token_blocks.h. Deterministic.",
                               .min_inputs = 3,
                               .max_inputs = 5,
                               .max_outputs = 3,
                               .infer = InferLayerNormGradient,
                               WEIR_REFERENCE(LayerNormGradientReference),
                               .aliases = {{1, 3}, {2, 4}}};
  return schema;
}

}  // namespace weir
