#include "kernels/common/cases.h"
#include "kernels/common/infer.h"
#include "kernels/movement/slice_axes.h"

namespace weir {
namespace {

// ---- Concat ----

// Sizes off the axis must agree; the result takes the known ones.
void MergeInto(Shape& out, const Shape& x, size_t axis) {
  WEIR_CHECK(x.size() == out.size(), ErrorCode::kInvalidShape, "inputs of ranks ", out.size(),
             " and ", x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    if (i == axis) {
      out[i] = out[i] + x[i];
    } else if (!out[i].IsKnown()) {
      out[i] = x[i];
    } else {
      WEIR_CHECK(!out[i].IsConstant() || !x[i].IsConstant() || out[i] == x[i],
                 ErrorCode::kInvalidShape, "axis ", i, " of ", ToString(x), " does not match ",
                 ToString(out));
    }
  }
}

void ConcatContent(InferContext& c) {
  Shape all;
  for (size_t i = 0; i < c.node.inputs.size(); ++i) {
    if (!c.HasShape(i) || c.shape(i).size() != 1) return;
    const int64_t length = LengthOf(c, i);
    if (length < 0 || length > kMaxContent - Rank(all)) return;
    const Shape part = Content(c, i).value_or(Shape(static_cast<size_t>(length)));
    all.insert(all.end(), part.begin(), part.end());
  }
  c.SetContent(0, std::move(all));
}

void InferConcat(InferContext& c) {
  const DType dtype = c.in(0)->dtype;
  const int64_t axis = c.node.attributes.Int("axis");
  Shape out;
  for (size_t i = 0; i < c.node.inputs.size(); ++i) {
    if (c.in(i) == nullptr) c.Fail(StrCat("input ", i, " is missing"));
    RequireSameType(c, 0, i);
    if (!c.HasShape(i)) return c.SetDType(0, dtype);
    if (i == 0) {
      out = c.shape(0);
    } else {
      MergeInto(out, c.shape(i), static_cast<size_t>(NormalizeAxis(axis, Rank(out))));
    }
  }
  NormalizeAxis(axis, Rank(out));
  c.SetOutput(0, dtype, std::move(out));
  if (!IsFloat(dtype)) ConcatContent(c);
}

template <class T>
void ConcatReference(Eval<T>& e) {
  Shape out = ToShape(e.x(0).dims);
  const auto axis = static_cast<size_t>(NormalizeAxis(e.attributes.Int("axis"), Rank(out)));
  for (size_t i = 1; i < e.in.size(); ++i) MergeInto(out, ToShape(e.x(i).dims), axis);
  Array<T>& y = e.out[0];
  y.dtype = e.x(0).dtype;
  y.dims = ToDims(out);
  CheckedElements(y.dims);
  const int64_t outer =
      NumElements(Dims(y.dims.begin(), y.dims.begin() + static_cast<int64_t>(axis)));
  const int64_t inner =
      NumElements(Dims(y.dims.begin() + static_cast<int64_t>(axis) + 1, y.dims.end()));
  for (int64_t o = 0; o < outer; ++o) {
    for (size_t i = 0; i < e.in.size(); ++i) {
      const Array<T>& x = e.x(i);
      WEIR_CHECK(x.is_float() == y.is_float(), ErrorCode::kInvalidModel, "input ", i, " is ",
                 DTypeName(x.dtype), ", input 0 is ", DTypeName(y.dtype));
      const int64_t run = x.dims[axis] * inner;
      if (y.is_float())
        y.f.insert(y.f.end(), x.f.begin() + o * run, x.f.begin() + (o + 1) * run);
      else
        y.i.insert(y.i.end(), x.i.begin() + o * run, x.i.begin() + (o + 1) * run);
    }
  }
}

// Sizes along `axis` as a rank-1 value, one element per input.
Value* SizesAlong(Builder& builder, const std::vector<Value*>& values, int64_t axis) {
  std::vector<int64_t> sizes;
  for (const Value* value : values) {
    const Dim& dim = value->shape[static_cast<size_t>(axis)];
    if (dim.IsConstant()) sizes.push_back(dim.Constant());
  }
  if (sizes.size() == values.size()) return builder.Ints(std::move(sizes));
  std::vector<Value*> parts;
  for (Value* value : values) {
    parts.push_back(builder.Op("Shape", {value}, {{"start", axis}, {"end", axis + 1}}));
  }
  return builder.Op("Concat", parts, {{"axis", int64_t{0}}});
}

void ConcatGradient(GradientContext& g) {
  Value* dy = g.OutputGradient(0);
  if (dy == nullptr) return;
  const int64_t axis = NormalizeAxis(g.node.attributes.Int("axis"), Rank(g.in(0)->shape));
  Value* sizes = SizesAlong(g.builder, g.node.inputs, axis);
  const auto parts =
      g.builder.Ops("Split", {dy, sizes}, static_cast<int>(g.node.inputs.size()), {{"axis", axis}});
  for (size_t i = 0; i < parts.size(); ++i) {
    if (g.Needs(i)) g.Add(i, parts[i]);
  }
}

// ---- Split ----

int64_t SplitCount(const Attributes& attributes, size_t outputs) {
  const int64_t count = attributes.Int("num_outputs", static_cast<int64_t>(outputs));
  WEIR_CHECK(count == static_cast<int64_t>(outputs) && count > 0, ErrorCode::kInvalidModel,
             "num_outputs is ", count, ", the node has ", outputs, " outputs");
  return count;
}

void InferSplit(InferContext& c) {
  RequireInts(c, 1);
  const size_t outputs = c.node.outputs.size();
  const int64_t count = SplitCount(c.node.attributes, outputs);
  for (size_t i = 0; i < outputs; ++i) c.SetDType(i, c.in(0)->dtype);
  if (!c.HasShape(0)) return;
  const auto axis =
      static_cast<size_t>(NormalizeAxis(c.node.attributes.Int("axis", 0), Rank(c.shape(0))));
  Shape sizes(outputs);
  const auto given = Content(c, 1);
  if (c.in(1) == nullptr || given) sizes = SplitSizes(c.shape(0)[axis], given, count);
  const auto content = c.shape(0).size() == 1 && IsConcrete(sizes) ? Content(c, 0) : std::nullopt;
  int64_t at = 0;
  for (size_t i = 0; i < outputs; ++i) {
    Shape out = c.shape(0);
    out[axis] = sizes[i];
    c.SetOutput(i, c.in(0)->dtype, std::move(out));
    if (!content) continue;
    c.SetContent(i, Shape(content->begin() + at, content->begin() + at + sizes[i].Constant()));
    at += sizes[i].Constant();
  }
}

template <class T>
void SplitReference(Eval<T>& e) {
  const Array<T>& x = e.x(0);
  const auto axis = static_cast<size_t>(NormalizeAxis(e.attributes.Int("axis", 0), Rank(x.dims)));
  const auto given = e.has(1) ? std::optional<Shape>(ToShape(IntsOf(e, 1))) : std::nullopt;
  const Shape sizes = SplitSizes(x.dims[axis], given, SplitCount(e.attributes, e.out.size()));
  std::vector<SliceAxis> slices = ResolveSlices(ToShape(x.dims), {}, {}, {}, {});
  Dim at = 0;
  for (size_t i = 0; i < e.out.size(); ++i) {
    slices[axis] = {at, 1, sizes[i]};
    at = at + sizes[i];
    e.out[i] = Take(x, SliceMap(x.dims, slices));
  }
}

void SplitGradient(GradientContext& g) {
  if (!g.Needs(0)) return;
  std::vector<Value*> parts;
  bool any = false;
  for (size_t i = 0; i < g.node.outputs.size(); ++i) any = any || g.OutputGradient(i) != nullptr;
  if (!any) return;
  for (size_t i = 0; i < g.node.outputs.size(); ++i) {
    Value* dy = g.OutputGradient(i);
    WEIR_CHECK(dy != nullptr || g.out(i) != nullptr, ErrorCode::kInvalidModel, "output ", i,
               " is missing; its shape is needed for the gradient");
    parts.push_back(dy != nullptr ? dy : ZerosLike(g.builder, g.out(i)));
  }
  g.Add(0, g.builder.Op("Concat", parts, {{"axis", g.node.attributes.Int("axis", 0)}}));
}

}  // namespace

const OpSchema& ConcatSchema() {
  static const OpSchema schema{
      .name = "Concat",
      .doc = "y joins the inputs along axis; other sizes are equal.  Source: ONNX Concat-13.",
      .min_inputs = 1,
      .max_inputs = -1,
      .infer = InferConcat,
      WEIR_REFERENCE(ConcatReference),
      .gradient = ConcatGradient,
      .cases = []() -> std::vector<OpCase> {
        return {{"rows", {{.dims = {2, 3}}, {.dims = {1, 3}}}, {{"axis", int64_t{0}}}},
                {"last",
                 {{.dims = {2, 3, 5}}, {.dims = {2, 3, 1}}, {.dims = {2, 3, 7}}},
                 {{"axis", int64_t{-1}}}},
                {"middle", {{.dims = {2, 3, 5}}, {.dims = {2, 1, 5}}}, {{"axis", int64_t{1}}}},
                {"one", {{.dims = {3}}}, {{"axis", int64_t{0}}}},
                {"wide", {{.dims = {2, 20011}}, {.dims = {2, 1}}}, {{"axis", int64_t{1}}}},
                {"with_empty", {{.dims = {2, 0}}, {.dims = {2, 3}}}, {{"axis", int64_t{1}}}},
                {"ints", {IntsInput({1, 2}), IntsInput({3})}, {{"axis", int64_t{0}}}, 1, false}};
      },
  };
  return schema;
}

const OpSchema& SplitSchema() {
  static const OpSchema schema{
      .name = "Split",
      .doc =
          "Cuts x along axis (0) into parts of sizes `split`, or into num_outputs parts of\n"
          "ceil(size / num_outputs), the last one smaller.\n"
          "x: any; split: int64 [outputs] optional.  Source: ONNX Split-18.",
      .min_inputs = 1,
      .max_inputs = 2,
      .min_outputs = 1,
      .max_outputs = -1,
      .infer = InferSplit,
      WEIR_REFERENCE(SplitReference),
      .gradient = SplitGradient,
      .cases = []() -> std::vector<OpCase> {
        return {{"equal", {{.dims = {6, 3}}}, {{"num_outputs", int64_t{2}}}, 2},
                {"uneven_last",
                 {{.dims = {2, 7}}},
                 {{"axis", int64_t{-1}}, {"num_outputs", int64_t{3}}},
                 3},
                {"sizes", {{.dims = {2, 6, 3}}, IntsInput({1, 0, 5})}, {{"axis", int64_t{1}}}, 3},
                {"empty", {{.dims = {0, 3}}}, {{"num_outputs", int64_t{2}}}, 2},
                {"ints", {IntsInput({1, 2, 3}), IntsInput({1, 2})}, {}, 2, false}};
      },
      .nondifferentiable_inputs = {1},
  };
  return schema;
}

}  // namespace weir
