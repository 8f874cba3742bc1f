#include "graph/op_schema.h"
#include "kernels/elementwise/infer.h"

namespace weir {
namespace {

template <class T>
void ZeroFillReference(Eval<T>& e) {
  e.out[0] = e.floats(0);
  std::fill(e.out[0].f.begin(), e.out[0].f.end(), T(0));
}

template <class T>
void AccumulateReference(Eval<T>& e) {
  WEIR_CHECK(e.floats(0).dims == e.floats(1).dims, ErrorCode::kInvalidShape, "Accumulate: accumulator ",
             ToString(e.floats(0).dims), ", gradient ", ToString(e.floats(1).dims));
  e.out[0] = e.floats(0);
  for (size_t k = 0; k < e.out[0].f.size(); ++k) e.out[0].f[k] += e.floats(1).f[k];
}

void InferAccumulate(InferContext& c) {
  InferUnary(c);
  if (c.HasShape(0) && c.HasShape(1) && IsKnown(c.shape(0)) && IsKnown(c.shape(1)) &&
      !Same(c.shape(0), c.shape(1))) {
    c.Fail(StrCat("accumulator ", ToString(c.shape(0)), ", gradient ", ToString(c.shape(1))));
  }
}

void InferZeros(InferContext& c) {
  Shape shape;
  for (const int64_t dim : c.node.attributes.Ints("dims")) shape.emplace_back(dim);
  c.SetOutput(0, DType::kFloat32, shape);
}

std::vector<OpCase> ZeroCases() {
  return {{"odd", {{.dims = {5, 67}}}}, {"empty", {{.dims = {0}}}}};
}
std::vector<OpCase> AccumulateCases() {
  return {{"odd", {{.dims = {5, 67}}, {.dims = {5, 67}}}},
          {"empty", {{.dims = {0}}, {.dims = {0}}}}};
}

}  // namespace

const OpSchema& ZeroFillSchema() {
  static const OpSchema schema{.name = "ZeroFill",
                               .domain = "ai.weir",
                               .doc = "acc' = 0, in place (=). float32, any shape. Cost: 4N bytes.",
                               .infer = InferUnary,
                               WEIR_REFERENCE(ZeroFillReference),
                               .cases = ZeroCases,
                               .aliases = {{0, 0}},
                               .has_side_effect = true};
  return schema;
}

const OpSchema& ZerosSchema() {
  static const OpSchema schema{.name = "Zeros",
                               .domain = "ai.weir",
                               .doc = "y = 0, float32 of shape `dims`: an accumulator that lives for a part of a step. Cost: 4N bytes.",
                               .min_inputs = 0,
                               .max_inputs = 0,
                               .infer = InferZeros,
                               .has_side_effect = true};
  return schema;
}

const OpSchema& AccumulateSchema() {
  static const OpSchema schema{.name = "Accumulate",
                               .domain = "ai.weir",
                               .doc =
                                   "acc' = acc + g, in place (+=). float32, equal shapes. "
                                   "Deterministic. Cost: N flop, 12N bytes.",
                               .min_inputs = 2,
                               .max_inputs = 2,
                               .infer = InferAccumulate,
                               WEIR_REFERENCE(AccumulateReference),
                               .cases = AccumulateCases,
                               .aliases = {{0, 0}}};
  return schema;
}

}  // namespace weir
