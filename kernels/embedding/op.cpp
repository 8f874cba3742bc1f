#include "graph/gradient.h"
#include "graph/op_schema.h"
#include "kernels/embedding/reference.h"

namespace weir {
namespace {

void InferEmbedding(InferContext& c) {
  if (!c.HasShape(0) || !c.HasShape(1)) return c.SetDType(0, c.in(1)->dtype);
  if (c.in(0)->dtype != DType::kInt64 && c.in(0)->dtype != DType::kUndefined) {
    c.Fail(StrCat("ids are ", DTypeName(c.in(0)->dtype), ", expected int64"));
  }
  if (c.shape(1).size() != 2) c.Fail(StrCat("weight ", ToString(c.shape(1)), ", expected [V,H]"));
  Shape y = c.shape(0);
  y.push_back(c.shape(1)[1]);
  c.SetOutput(0, c.in(1)->dtype, std::move(y));
}

void InferEmbeddingGradient(InferContext& c) {
  const Shape& dy = c.shape(1);
  if (dy.size() != c.shape(0).size() + 1) {
    c.Fail(StrCat("dy ", ToString(dy), " does not match ids ", ToString(c.shape(0))));
  }
  if (!c.HasShape(2)) {
    return c.SetOutput(0, DType::kFloat32, {Dim(c.node.attributes.Int("rows")), dy.back()});
  }
  if (c.shape(2).size() != 2 || !(c.shape(2)[1] == dy.back())) {
    c.Fail(StrCat("accumulator ", ToString(c.shape(2)), " does not match dy ", ToString(dy)));
  }
  c.SetOutput(0, DType::kFloat32, c.shape(2));
}

void EmbeddingGradient(GradientContext& g) {
  Value* dy = g.OutputGradient(0);
  if (dy == nullptr || !g.Needs(1)) return;
  if (Value* accumulator = g.Accumulator(1)) {
    return g.SetAccumulator(1, g.builder.Op("EmbeddingGradient", {g.in(0), dy, accumulator}));
  }
  g.Add(1, g.builder.Op("EmbeddingGradient", {g.in(0), dy},
                        {{"rows", g.in(1)->shape.at(0).Constant()}}));
}

CaseInput Ids(Dims dims, std::vector<int64_t> ids) {
  return {.kind = CaseInput::Kind::kInts, .dims = std::move(dims), .ints = std::move(ids)};
}

std::vector<OpCase> EmbeddingCases() {
  std::vector<int64_t> many(4100);
  for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<int64_t>(i * i % 11);
  return {{"repeated", {Ids({2, 3}, {4, 0, 4, 4, 1, 0}), {.dims = {5, 7}}}},
          {"one_row", {Ids({1, 2}, {0, 0}), {.dims = {1, 70}}}},
          {"two_blocks", {Ids({2, 2050}, many), {.dims = {13, 3}}}},
          {"no_tokens", {Ids({0, 3}, {}), {.dims = {5, 7}}}}};
}

}  // namespace

const OpSchema& EmbeddingSchema() {
  static const OpSchema schema{
      .name = "Embedding",
      .domain = "ai.weir",
      .doc =
          "y[b,s,h] = weight[ids[b,s],h]\n"
          "ids: [B,S] int64 in [0,V), else InvalidArgument with position and value; weight: [V,H] "
          "float;\n"
          "y: [B,S,H]. A copy: exact. Gradient: EmbeddingGradient. Cost: 8BSH bytes.",
      .min_inputs = 2,
      .max_inputs = 2,
      .infer = InferEmbedding,
      WEIR_REFERENCE(EmbeddingReference),
      .gradient = EmbeddingGradient,
      .cost =
          [](const Node& n) {
            return Cost{0, 8 * static_cast<double>(NumElements(ToDims(n.out(0)->shape)))};
          },
      .cases = EmbeddingCases,
      .nondifferentiable_inputs = {0}};
  return schema;
}

const OpSchema& EmbeddingGradientSchema() {
  static const OpSchema schema{
      .name = "EmbeddingGradient",
      .domain = "ai.weir",
      .doc =
          "dW[v,h] = acc[v,h] + sum over tokens with id v of dy[token,h]\n"
          "ids: [B,S] int64; dy: [B,S,H]; acc (optional): [V,H] float32, updated in place (+=), "
          "else\n"
          "attribute rows = V; dW: [V,H]. Token blocks of 4096 in order, each summed from zero in "
          "token\n"
          "order in float32, left fold starting from acc. Deterministic. Cost: BSH flop.",
      .min_inputs = 2,
      .max_inputs = 3,
      .infer = InferEmbeddingGradient,
      WEIR_REFERENCE(EmbeddingGradientReference),
      .cost =
          [](const Node& n) {
            const double count = static_cast<double>(NumElements(ToDims(n.in(1)->shape)));
            return Cost{count, 8 * count};
          },
      .aliases = {{0, 2}},
      .nondifferentiable_inputs = {0}};
  return schema;
}

}  // namespace weir
