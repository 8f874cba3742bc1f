#include "kernels/common/cases.h"
#include "kernels/common/infer.h"
#include "kernels/gather_scatter/maps.h"

namespace weir {
namespace {

int64_t AxisOf(const Attributes& attributes) { return attributes.Int("axis", 0); }
int64_t BatchDimsOf(const Attributes& attributes) { return attributes.Int("batch_dims", 0); }

void InferGather(InferContext& c) {
  RequireInts(c, 1);
  const DType dtype = c.in(0)->dtype;
  if (!c.HasShape(0) || !c.HasShape(1)) return c.SetDType(0, dtype);
  const int64_t axis = AxisOf(c.node.attributes);
  c.SetOutput(0, dtype, GatheredShape(c.shape(0), c.shape(1), axis));
  const auto ids = ConstantContent(c, 1);
  if (ids && CarriesContent(c)) {
    MapContent(c, GatherMap(ToDims(c.shape(0)), ToDims(c.shape(1)), *ids, axis));
  }
}

void InferGatherElements(InferContext& c) {
  RequireInts(c, 1);
  if (c.HasShape(0) && c.HasShape(1)) {
    CheckElementIds(c.shape(0), c.shape(1), AxisOf(c.node.attributes));
  }
  c.SetDType(0, c.in(0)->dtype);
  if (c.HasShape(1)) c.SetOutput(0, c.in(0)->dtype, c.shape(1));
}

void InferGatherND(InferContext& c) {
  RequireInts(c, 1);
  c.SetDType(0, c.in(0)->dtype);
  if (!c.HasShape(0) || !c.HasShape(1)) return;
  const Shape& ids = c.shape(1);
  if (!ids.empty() && !ids.back().IsConstant()) return;
  c.SetOutput(0, c.in(0)->dtype, GatheredNDShape(c.shape(0), ids, BatchDimsOf(c.node.attributes)));
}

// A gradient op has inputs dy, ids, shape of x; dy must have the shape that the forward op gives.
void InferAnyGradient(InferContext& c, Shape (*forward)(const Shape& x, const Shape& ids, int64_t),
                      int64_t argument) {
  RequireInts(c, 1);
  InferFromShapeInput(c, 2);
  const Value* dx = c.node.out(0);
  if (dx == nullptr || !dx->has_shape || !c.HasShape(1)) return;
  RequireShape(c, 0, forward(dx->shape, c.shape(1), argument));
}

void InferGatherGradient(InferContext& c) {
  InferAnyGradient(c, GatheredShape, AxisOf(c.node.attributes));
}
void InferGatherElementsGradient(InferContext& c) {
  const auto forward = [](const Shape& x, const Shape& ids, int64_t axis) {
    CheckElementIds(x, ids, axis);
    return ids;
  };
  InferAnyGradient(c, forward, AxisOf(c.node.attributes));
}
void InferGatherNDGradient(InferContext& c) {
  InferAnyGradient(c, GatheredNDShape, BatchDimsOf(c.node.attributes));
}

// The map of inputs (data of dims x, ids): which op decides how.
template <class T>
IndexMap MapOf(const Eval<T>& e, const Dims& x, decltype(GatherMap)* map, int64_t argument) {
  return map(x, e.x(1).dims, IntsOf(e, 1), argument);
}

template <class T>
void GatherReference(Eval<T>& e) {
  e.out[0] = Take(e.x(0), MapOf(e, e.x(0).dims, GatherMap, AxisOf(e.attributes)));
}
template <class T>
void GatherElementsReference(Eval<T>& e) {
  e.out[0] = Take(e.x(0), MapOf(e, e.x(0).dims, GatherElementsMap, AxisOf(e.attributes)));
}
template <class T>
void GatherNDReference(Eval<T>& e) {
  e.out[0] = Take(e.x(0), MapOf(e, e.x(0).dims, GatherNDMap, BatchDimsOf(e.attributes)));
}

template <class T>
void GatherGradientReference(Eval<T>& e) {
  const Dims& x = IntsOf(e, 2);
  CheckedElements(x);
  e.out[0] = TakeGradient(e.x(0), MapOf(e, x, GatherMap, AxisOf(e.attributes)), x);
}
template <class T>
void GatherElementsGradientReference(Eval<T>& e) {
  const Dims& x = IntsOf(e, 2);
  CheckedElements(x);
  e.out[0] = TakeGradient(e.x(0), MapOf(e, x, GatherElementsMap, AxisOf(e.attributes)), x);
}
template <class T>
void GatherNDGradientReference(Eval<T>& e) {
  const Dims& x = IntsOf(e, 2);
  CheckedElements(x);
  e.out[0] = TakeGradient(e.x(0), MapOf(e, x, GatherNDMap, BatchDimsOf(e.attributes)), x);
}

void GradientBy(GradientContext& g, std::string_view op) {
  Value* dy = g.OutputGradient(0);
  if (dy == nullptr || !g.Needs(0)) return;
  g.Add(0, g.builder.Op(op, {dy, g.in(1), ShapeOf(g.builder, g.in(0))}, g.node.attributes));
}
void GatherGradient(GradientContext& g) { GradientBy(g, "GatherGradient"); }
void GatherElementsGradient(GradientContext& g) { GradientBy(g, "GatherElementsGradient"); }
void GatherNDGradient(GradientContext& g) { GradientBy(g, "GatherNDGradient"); }

}  // namespace

const OpSchema& GatherSchema() {
  static const OpSchema schema{
      .name = "Gather",
      .doc =
          "y[.., i.., ..] = x[.., ids[i..], ..] along axis (0); negative ids count from the back,\n"
          "others outside [-n, n) are an error.\n"
          "x: any [a.., n, b..]; ids: int [i..]; y: [a.., i.., b..].  Source: ONNX Gather-13.",
      .min_inputs = 2,
      .max_inputs = 2,
      .infer = InferGather,
      WEIR_REFERENCE(GatherReference),
      .gradient = GatherGradient,
      .cases = []() -> std::vector<OpCase> {
        return {
            {"rows", {{.dims = {5, 3}}, IntsInput({2, 2}, {4, 0, -1, 2})}},
            {"last_axis", {{.dims = {2, 3, 5}}, IntsInput({0, 4, -5})}, {{"axis", int64_t{-1}}}},
            {"middle", {{.dims = {2, 3, 5}}, IntsInput({2, 2, 1, 0})}, {{"axis", int64_t{1}}}},
            {"scalar_id", {{.dims = {3, 5}}, IntInput(1)}},
            {"to_scalar", {{.dims = {3}}, IntInput(-1)}},
            {"no_ids", {{.dims = {3, 5}}, IntsInput({})}},
            {"ints", {IntsInput({7, 8, 9}), IntsInput({2, 0})}, {}, 1, false}};
      },
      .nondifferentiable_inputs = {1},
  };
  return schema;
}

const OpSchema& GatherElementsSchema() {
  static const OpSchema schema{
      .name = "GatherElements",
      .doc =
          "y[i_0, .., i_r] = x[i_0, .., ids[i_0, .., i_r], .., i_r] with the id at place axis\n"
          "(0).\n"
          "x: any; ids: int, same rank; y: dims of ids.  Source: ONNX GatherElements-13.",
      .min_inputs = 2,
      .max_inputs = 2,
      .infer = InferGatherElements,
      WEIR_REFERENCE(GatherElementsReference),
      .gradient = GatherElementsGradient,
      .cases = []() -> std::vector<OpCase> {
        return {{"top_k",
                 {{.dims = {3, 5}}, IntsInput({3, 2}, {4, 0, 1, 3, -1, 2})},
                 {{"axis", int64_t{-1}}}},
                {"repeats", {{.dims = {3, 2}}, IntsInput({4, 1}, {2, 2, -3, 2})}},
                {"middle",
                 {{.dims = {2, 3, 2}}, IntsInput({1, 2, 2}, {0, 1, 2, 0})},
                 {{"axis", int64_t{1}}}},
                {"empty", {{.dims = {3, 2}}, IntsInput({0, 2}, {})}}};
      },
      .nondifferentiable_inputs = {1},
  };
  return schema;
}

const OpSchema& GatherNDSchema() {
  static const OpSchema schema{
      .name = "GatherND",
      .doc =
          "y[b.., i..] = x[b.., ids[b.., i..]..]: the last axis of ids is a (partial) index\n"
          "tuple.\n"
          "x: any; ids: int64 [.., depth]; batch_dims (0) leading axes are shared.\n"
          "Source: ONNX GatherND-13.",
      .min_inputs = 2,
      .max_inputs = 2,
      .infer = InferGatherND,
      WEIR_REFERENCE(GatherNDReference),
      .gradient = GatherNDGradient,
      .cases = []() -> std::vector<OpCase> {
        return {{"full", {{.dims = {3, 4}}, IntsInput({3, 2}, {0, 1, 2, -1, 0, 1})}},
                {"rows", {{.dims = {3, 4}}, IntsInput({2, 1}, {2, 2})}},
                {"batched",
                 {{.dims = {2, 3, 4}}, IntsInput({2, 2, 1}, {2, 0, 1, -1})},
                 {{"batch_dims", int64_t{1}}}},
                {"one", {{.dims = {3, 4}}, IntsInput({2}, {1, 1})}},
                {"none", {{.dims = {3, 4}}, IntsInput({0, 2}, {})}}};
      },
      .nondifferentiable_inputs = {1},
  };
  return schema;
}

#define GATHER_GRADIENT_SCHEMA(Name, attribute)                                                   \
  const OpSchema& Name##Schema() {                                                                \
    static const OpSchema schema{                                                                 \
        .name = #Name,                                                                            \
        .domain = "ai.weir",                                                                      \
        .doc =                                                                                    \
            "dx = sum of dy over the places that read x. inputs dy, ids, shape of x int64 [r];\n" \
            "attribute " attribute                                                                \
            ". float32 sums from zero in order of ids. Deterministic.\n"                          \
            "Writes (=).",                                                                        \
        .min_inputs = 3,                                                                          \
        .max_inputs = 3,                                                                          \
        .infer = Infer##Name,                                                                     \
        WEIR_REFERENCE(Name##Reference),                                                          \
    };                                                                                            \
    return schema;                                                                                \
  }
GATHER_GRADIENT_SCHEMA(GatherGradient, "axis")
GATHER_GRADIENT_SCHEMA(GatherElementsGradient, "axis")
GATHER_GRADIENT_SCHEMA(GatherNDGradient, "batch_dims")

}  // namespace weir
