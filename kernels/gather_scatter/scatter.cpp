#include "kernels/common/cases.h"
#include "kernels/common/infer.h"
#include "kernels/gather_scatter/maps.h"

namespace weir {
namespace {

bool Adds(const Attributes& attributes) {
  const std::string reduction = attributes.String("reduction", "none");
  WEIR_CHECK(reduction == "none" || reduction == "add", ErrorCode::kUnsupportedOp, "reduction '",
             reduction, "' is not supported; only 'none' and 'add' are");
  return reduction == "add";
}

int64_t AxisOf(const Attributes& attributes) { return attributes.Int("axis", 0); }

void InferLikeData(InferContext& c) {
  Adds(c.node.attributes);
  RequireInts(c, 1);
  RequireSameType(c, 0, 2);
  c.SetDType(0, c.in(0)->dtype);
  if (c.HasShape(0)) c.SetOutput(0, c.in(0)->dtype, c.shape(0));
}

void InferScatterElements(InferContext& c) {
  InferLikeData(c);
  if (!c.HasShape(0) || !c.HasShape(1)) return;
  CheckElementIds(c.shape(0), c.shape(1), AxisOf(c.node.attributes));
  RequireShape(c, 2, c.shape(1));
}

void InferScatterND(InferContext& c) {
  InferLikeData(c);
  if (!c.HasShape(0) || !c.HasShape(1) || c.shape(1).empty() || !c.shape(1).back().IsConstant())
    return;
  RequireShape(c, 2, GatheredNDShape(c.shape(0), c.shape(1), 0));
}

// out = data; out[place[k]] = or += updates[k], in order of k.
template <class E>
void ScatterInto(std::vector<E>& out, const std::vector<int64_t>& place,
                 const std::vector<E>& updates, bool add) {
  for (size_t k = 0; k < place.size(); ++k) {
    E& slot = out[static_cast<size_t>(place[k])];
    slot = add ? slot + updates[k] : updates[k];
  }
}

template <class T>
void Scatter(Eval<T>& e, const IndexMap& map) {
  const Array<T>&data = e.x(0), &updates = e.x(2);
  WEIR_CHECK(data.is_float() == updates.is_float(), ErrorCode::kInvalidModel, "updates are ",
             DTypeName(updates.dtype), ", data is ", DTypeName(data.dtype));
  WEIR_CHECK(updates.dims == map.dims, ErrorCode::kInvalidShape, "updates ", ToString(updates.dims),
             ", expected ", ToString(map.dims));
  const bool add = Adds(e.attributes);
  e.out[0] = data;
  ScatterInto(e.out[0].f, data.is_float() ? map.source : std::vector<int64_t>{}, updates.f, add);
  ScatterInto(e.out[0].i, data.is_float() ? std::vector<int64_t>{} : map.source, updates.i, add);
}

template <class T>
void ScatterElementsReference(Eval<T>& e) {
  Scatter(e, GatherElementsMap(e.x(0).dims, e.x(1).dims, IntsOf(e, 1), AxisOf(e.attributes)));
}

template <class T>
void ScatterNDReference(Eval<T>& e) {
  Scatter(e, GatherNDMap(e.x(0).dims, e.x(1).dims, IntsOf(e, 1), 0));
}

// Replaced data gets no gradient; an update gets the gradient of the place it went to.
void ScatterGradient(GradientContext& g, std::string_view scatter, std::string_view gather) {
  Value* dy = g.OutputGradient(0);
  if (dy == nullptr) return;
  if (g.Needs(0) && Adds(g.node.attributes)) {
    g.Add(0, dy);
  } else if (g.Needs(0)) {
    Value* zeros = ZerosLike(g.builder, g.in(2));
    g.Add(0, g.builder.Op(scatter, {dy, g.in(1), zeros}, g.node.attributes));
  }
  Attributes attributes;
  if (g.node.attributes.Has("axis")) attributes.Set("axis", AxisOf(g.node.attributes));
  if (g.Needs(2)) g.Add(2, g.builder.Op(gather, {dy, g.in(1)}, attributes));
}
void ScatterElementsGradient(GradientContext& g) {
  ScatterGradient(g, "ScatterElements", "GatherElements");
}
void ScatterNDGradient(GradientContext& g) { ScatterGradient(g, "ScatterND", "GatherND"); }

const Attributes kAdd = {{"reduction", std::string("add")}};

}  // namespace

const OpSchema& ScatterElementsSchema() {
  static const OpSchema schema{
      .name = "ScatterElements",
      .doc =
          "y = data, then y[i_0, .., ids[i_0, .., i_r], .., i_r] = (reduction add: +=)\n"
          "updates[i_0, .., i_r] in row-major order, the id at place axis (0).\n"
          "data: any; ids: int, same rank; updates: dims of ids. Repeated ids: add is exact in\n"
          "order; none keeps the last and its gradient is undefined.  Source: ONNX\n"
          "ScatterElements-18.",
      .min_inputs = 3,
      .max_inputs = 3,
      .infer = InferScatterElements,
      WEIR_REFERENCE(ScatterElementsReference),
      .gradient = ScatterElementsGradient,
      .cases = []() -> std::vector<OpCase> {
        const CaseInput ids = IntsInput({2, 2}, {4, 0, 1, -2});
        Attributes last = kAdd;
        last.Set("axis", int64_t{-1});
        return {{"set", {{.dims = {2, 5}}, ids, {.dims = {2, 2}}}, {{"axis", int64_t{1}}}},
                {"add", {{.dims = {2, 5}}, ids, {.dims = {2, 2}}}, last},
                {"add_repeats",
                 {{.dims = {3, 2}}, IntsInput({4, 1}, {0, 2, 0, 0}), {.dims = {4, 1}}},
                 kAdd},
                {"empty", {{.dims = {3, 2}}, IntsInput({0, 2}, {}), {.dims = {0, 2}}}}};
      },
      .nondifferentiable_inputs = {1},
  };
  return schema;
}

const OpSchema& ScatterNDSchema() {
  static const OpSchema schema{
      .name = "ScatterND",
      .doc =
          "y = data, then y[ids[i..]..] = (reduction add: +=) updates[i..] in row-major order;\n"
          "the last axis of ids is a (partial) index tuple.\n"
          "data: any; ids: int64 [i.., depth]; updates: [i.., rest of data].  Source: ONNX\n"
          "ScatterND-18.",
      .min_inputs = 3,
      .max_inputs = 3,
      .infer = InferScatterND,
      WEIR_REFERENCE(ScatterNDReference),
      .gradient = ScatterNDGradient,
      .cases = []() -> std::vector<OpCase> {
        return {{"rows", {{.dims = {4, 3}}, IntsInput({2, 1}, {2, -4}), {.dims = {2, 3}}}},
                {"elements", {{.dims = {4, 3}}, IntsInput({2, 2}, {2, 1, 0, -1}), {.dims = {2}}}},
                {"add_repeats",
                 {{.dims = {4, 3}}, IntsInput({3, 1}, {1, 1, 3}), {.dims = {3, 3}}},
                 kAdd},
                {"empty", {{.dims = {4, 3}}, IntsInput({0, 1}, {}), {.dims = {0, 3}}}}};
      },
      .nondifferentiable_inputs = {1},
  };
  return schema;
}

}  // namespace weir
