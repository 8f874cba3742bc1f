#include <algorithm>

#include "kernels/common/cases.h"
#include "kernels/common/dims.h"
#include "kernels/common/infer.h"

namespace weir {
namespace {

// ---- Expand ----

Shape ExpandedShape(const Shape& x, const Shape& target) {
  for (const Dim& dim : target) {
    WEIR_CHECK(!dim.IsConstant() || dim.Constant() >= 0, ErrorCode::kInvalidShape, "target ",
               ToString(target), " has a negative size");
  }
  const auto shape = Broadcast(x, target);
  WEIR_CHECK(shape.has_value(), ErrorCode::kInvalidShape, "cannot broadcast ", ToString(x), " to ",
             ToString(target));
  return *shape;
}

IndexMap ExpandMap(const Dims& x, const Dims& dims) {
  const Dims strides = Strides(x);
  return MakeIndexMap(dims, [&](const Dims& at) {
    int64_t from = 0;
    const size_t lead = at.size() - x.size();
    for (size_t i = 0; i < x.size(); ++i) from += x[i] == 1 ? 0 : at[lead + i] * strides[i];
    return from;
  });
}

void InferExpand(InferContext& c) {
  const DType dtype = c.in(0)->dtype;
  if (!c.HasShape(0)) return c.SetDType(0, dtype);
  const auto target = Content(c, 1);
  if (!target) {
    const int64_t rank = LengthOf(c, 1);
    return SetUnknown(c, dtype, rank < 0 ? -1 : std::max(rank, Rank(c.shape(0))));
  }
  c.SetOutput(0, dtype, ExpandedShape(c.shape(0), *target));
  if (CarriesContent(c)) MapContent(c, ExpandMap(ToDims(c.shape(0)), ToDims(c.node.out(0)->shape)));
}

template <class T>
void ExpandReference(Eval<T>& e) {
  const Dims& x = e.x(0).dims;
  e.out[0] = Take(e.x(0), ExpandMap(x, ToDims(ExpandedShape(ToShape(x), ToShape(IntsOf(e, 1))))));
}

// ---- Tile ----

Shape TiledShape(const Shape& x, const Shape& repeats) {
  WEIR_CHECK(x.size() == repeats.size(), ErrorCode::kInvalidShape, repeats.size(),
             " repeats for an input of rank ", x.size());
  Shape out;
  for (size_t i = 0; i < x.size(); ++i) {
    WEIR_CHECK(!repeats[i].IsConstant() || repeats[i].Constant() >= 0, ErrorCode::kInvalidShape,
               "negative entry in repeats ", ToString(repeats));
    out.push_back(x[i] * repeats[i]);
    WEIR_CHECK(out.back().IsKnown() || !x[i].IsConstant() || !repeats[i].IsConstant(),
               ErrorCode::kInvalidShape, "repeats ", ToString(repeats), " overflow");
  }
  return out;
}

IndexMap TileMap(const Dims& x, const Dims& dims) {
  const Dims strides = Strides(x);
  return MakeIndexMap(dims, [&](const Dims& at) {
    int64_t from = 0;
    for (size_t i = 0; i < at.size(); ++i) from += at[i] % x[i] * strides[i];
    return from;
  });
}

void InferTile(InferContext& c) {
  const DType dtype = c.in(0)->dtype;
  const auto repeats = Content(c, 1);
  if (!c.HasShape(0) || !repeats) {
    return SetUnknown(c, dtype, c.HasShape(0) ? Rank(c.shape(0)) : LengthOf(c, 1));
  }
  c.SetOutput(0, dtype, TiledShape(c.shape(0), *repeats));
  if (CarriesContent(c)) MapContent(c, TileMap(ToDims(c.shape(0)), ToDims(c.node.out(0)->shape)));
}

template <class T>
void TileReference(Eval<T>& e) {
  const Dims& x = e.x(0).dims;
  e.out[0] = Take(e.x(0), TileMap(x, ToDims(TiledShape(ToShape(x), ToShape(IntsOf(e, 1))))));
}

// ---- Gradients ----

// Whether a dim of dy may come from repeating a dim of x.
bool MayTile(const Dim& x, const Dim& dy) {
  if (!x.IsConstant() || !dy.IsConstant()) return true;
  return x.Constant() == 0 ? dy.Constant() == 0 : dy.Constant() % x.Constant() == 0;
}
bool MayExpand(const Dim& x, const Dim& dy) { return x == Dim(1) || !Differ(x, dy); }

// Axes of x line up with the last ones of dy.
bool MayRepeat(const Shape& x, const Shape& dy, bool (*may)(const Dim&, const Dim&)) {
  if (x.size() > dy.size()) return false;
  return std::equal(x.begin(), x.end(), dy.end() - Rank(x), may);
}

void InferReducing(InferContext& c, bool (*may)(const Dim&, const Dim&)) {
  InferFromShapeInput(c, 1);
  const Value* dx = c.node.out(0);
  if (dx == nullptr || !dx->has_shape || !c.HasShape(0)) return;
  const bool same_rank = may != MayTile || dx->shape.size() == c.shape(0).size();
  if (same_rank && MayRepeat(dx->shape, c.shape(0), may)) return;
  c.Fail(StrCat("dy ", ToString(c.shape(0)), " does not repeat ", ToString(dx->shape)));
}
void InferExpandGradient(InferContext& c) { InferReducing(c, MayExpand); }
void InferTileGradient(InferContext& c) { InferReducing(c, MayTile); }

template <class T>
void ExpandGradientReference(Eval<T>& e) {
  const Dims &x = IntsOf(e, 1), &dy = e.x(0).dims;
  WEIR_CHECK(MayRepeat(ToShape(x), ToShape(dy), MayExpand), ErrorCode::kInvalidShape, ToString(dy),
             " is no expansion of ", ToString(x));
  e.out[0] = TakeGradient(e.x(0), ExpandMap(x, dy), x);
}

template <class T>
void TileGradientReference(Eval<T>& e) {
  const Dims &x = IntsOf(e, 1), &dy = e.x(0).dims;
  WEIR_CHECK(x.size() == dy.size() && MayRepeat(ToShape(x), ToShape(dy), MayTile),
             ErrorCode::kInvalidShape, ToString(dy), " is no tiling of ", ToString(x));
  e.out[0] = TakeGradient(e.x(0), TileMap(x, dy), x);
}

void ReducingGradient(GradientContext& g, std::string_view op) {
  Value* dy = g.OutputGradient(0);
  if (dy != nullptr && g.Needs(0)) g.Add(0, g.builder.Op(op, {dy, ShapeOf(g.builder, g.in(0))}));
}
void ExpandGradient(GradientContext& g) { ReducingGradient(g, "ExpandGradient"); }
void TileGradient(GradientContext& g) { ReducingGradient(g, "TileGradient"); }

}  // namespace

const OpSchema& ExpandSchema() {
  static const OpSchema schema{
      .name = "Expand",
      .doc =
          "y = x broadcast against shape, both ways: a 1 in shape keeps the size of x.\n"
          "x: any; shape: int64 [r].  Source: ONNX Expand-13.",
      .min_inputs = 2,
      .max_inputs = 2,
      .infer = InferExpand,
      WEIR_REFERENCE(ExpandReference),
      .gradient = ExpandGradient,
      .cases = []() -> std::vector<OpCase> {
        return {{"heads", {{.dims = {2, 3, 1, 5, 4}}, IntsInput({2, 3, 2, 5, 4})}},
                {"both_ways", {{.dims = {3, 1}}, IntsInput({2, 1, 6})}},
                {"last", {{.dims = {2, 1}}, IntsInput({2, 9})}},
                {"scalar", {{.dims = {}}, IntsInput({2, 3})}},
                {"wide", {{.dims = {1, 700}}, IntsInput({40, 700})}},
                {"no_change", {{.dims = {3, 4}}, IntsInput({1})}},
                {"to_empty", {{.dims = {1, 3}}, IntsInput({0, 3})}},
                {"ints", {IntsInput({7}), IntsInput({3})}, {}, 1, false}};
      },
      .nondifferentiable_inputs = {1},
  };
  return schema;
}

const OpSchema& TileSchema() {
  static const OpSchema schema{
      .name = "Tile",
      .doc =
          "y = x repeated repeats[i] times along axis i.\n"
          "x: any [r dims]; repeats: int64 [r].  Source: ONNX Tile-13.",
      .min_inputs = 2,
      .max_inputs = 2,
      .infer = InferTile,
      WEIR_REFERENCE(TileReference),
      .gradient = TileGradient,
      .cases = []() -> std::vector<OpCase> {
        return {{"rows", {{.dims = {3, 5}}, IntsInput({2, 1})}},
                {"both", {{.dims = {2, 3}}, IntsInput({3, 2})}},
                {"none", {{.dims = {2, 3}}, IntsInput({0, 2})}},
                {"scalar", {{.dims = {}}, IntsInput({})}},
                {"ints", {IntsInput({1, 2}), IntsInput({2})}, {}, 1, false}};
      },
      .nondifferentiable_inputs = {1},
  };
  return schema;
}

const OpSchema& ExpandGradientSchema() {
  static const OpSchema schema{
      .name = "ExpandGradient",
      .domain = "ai.weir",
      .doc =
          "dx = dy summed over the axes that Expand (or any broadcast) repeated.\n"
          "inputs dy [...], shape of x int64 [r], r <= rank of dy. Sums run in row-major order of\n"
          "dy in float64 and round once. Deterministic. Writes (=).",
      .min_inputs = 2,
      .max_inputs = 2,
      .infer = InferExpandGradient,
      WEIR_REFERENCE(ExpandGradientReference),
  };
  return schema;
}

const OpSchema& TileGradientSchema() {
  static const OpSchema schema{
      .name = "TileGradient",
      .domain = "ai.weir",
      .doc =
          "dx = sum of the copies that Tile made. inputs dy, shape of x int64 [r]. Sums run in\n"
          "row-major order of dy in float64 and round once. Deterministic. Writes (=).",
      .min_inputs = 2,
      .max_inputs = 2,
      .infer = InferTileGradient,
      WEIR_REFERENCE(TileGradientReference),
  };
  return schema;
}

}  // namespace weir
