#include "kernels/common/infer.h"

#include "kernels/common/dims.h"

namespace weir {

std::optional<Shape> Content(const InferContext& c, size_t i) {
  if (const auto* content = c.content(i)) return *content;
  const Value* value = c.in(i);
  if (value == nullptr || value->role != Role::kConstant || value->data == nullptr ||
      IsFloat(value->dtype) || value->data->elements() > kMaxContent) {
    return std::nullopt;
  }
  return ToShape(value->data->AsInts());
}

std::optional<std::vector<int64_t>> ConstantContent(const InferContext& c, size_t i) {
  const auto content = Content(c, i);
  if (!content || !IsConcrete(*content)) return std::nullopt;
  return ToDims(*content);
}

int64_t LengthOf(const InferContext& c, size_t i) {
  if (const auto content = Content(c, i)) return Rank(*content);
  if (!c.HasShape(i)) return -1;
  const Shape& shape = c.shape(i);
  if (shape.size() != 1) c.Fail(StrCat("input ", i, " must have rank 1, got ", ToString(shape)));
  return shape[0].IsConstant() ? shape[0].Constant() : -1;
}

void SetUnknown(InferContext& c, DType dtype, int64_t rank) {
  c.SetDType(0, dtype);
  // A longer "shape" comes from a broken file; no tensor has that many axes.
  if (rank >= 0 && rank <= kMaxContent) c.SetOutput(0, dtype, Shape(static_cast<size_t>(rank)));
}

void CopyContent(InferContext& c) {
  if (auto content = Content(c, 0)) c.SetContent(0, std::move(*content));
}

bool CarriesContent(const InferContext& c, size_t i) {
  const Value* out = c.node.out(0);
  if (!c.HasShape(i) || out == nullptr || !out->has_shape || IsFloat(c.in(i)->dtype)) return false;
  if (!IsConcrete(c.shape(i)) || !IsConcrete(out->shape)) return false;
  return NumElements(ToDims(out->shape)) <= kMaxContent && Content(c, i).has_value();
}

void MapContent(InferContext& c, const IndexMap& map, size_t i) {
  c.SetContent(0, TakeElements(*Content(c, i), map.source, Dim(0)));
}

void RequireInputs(const InferContext& c) {
  for (int i = 0; i < c.node.schema->min_inputs; ++i) {
    if (c.in(static_cast<size_t>(i)) == nullptr)
      c.Fail(StrCat("required input ", i, " is missing"));
  }
}

void InferFromShapeInput(InferContext& c, size_t i) {
  RequireInputs(c);
  RequireFloat32(c, 0);
  if (const auto shape = Content(c, i)) return c.SetOutput(0, c.in(0)->dtype, *shape);
  SetUnknown(c, c.in(0)->dtype, LengthOf(c, i));
}

void RequireInts(const InferContext& c, size_t i) {
  const Value* value = c.in(i);
  if (value == nullptr || value->dtype == DType::kUndefined || value->dtype == DType::kInt64 ||
      value->dtype == DType::kInt32) {
    return;
  }
  c.Fail(StrCat("input ", i, " must be int32 or int64, got ", DTypeName(value->dtype)));
}

void RequireSameType(const InferContext& c, size_t i, size_t j) {
  const DType a = c.in(i)->dtype, b = c.in(j)->dtype;
  if (a == b || a == DType::kUndefined || b == DType::kUndefined) return;
  c.Fail(StrCat("inputs ", i, " and ", j, " must have one type, got ", DTypeName(a), " and ",
                DTypeName(b)));
}

void RequireShape(const InferContext& c, size_t i, const Shape& expected) {
  if (!c.HasShape(i)) return;
  const Shape& shape = c.shape(i);
  bool fits = shape.size() == expected.size();
  for (size_t k = 0; fits && k < shape.size(); ++k) fits = !Differ(shape[k], expected[k]);
  if (fits) return;
  c.Fail(StrCat("input ", i, " has shape ", ToString(shape), ", expected ", ToString(expected)));
}

void RequireFloat32(const InferContext& c, size_t i) {
  const DType dtype = c.in(i)->dtype;
  if (dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kUndefined) return;
  c.Fail(StrCat("input ", i, " is a gradient and must be float, got ", DTypeName(dtype)));
}

Value* ShapeOf(Builder& builder, Value* value) {
  if (value->has_shape && IsConcrete(value->shape)) return builder.Ints(ToDims(value->shape));
  return builder.Op("Shape", {value});
}

Value* ZerosLike(Builder& builder, Value* value) {
  return builder.Op("ConstantOfShape", {ShapeOf(builder, value)});
}

}  // namespace weir
