#include <cmath>

#include "kernels/cast/convert.h"
#include "kernels/common/cases.h"
#include "kernels/common/copy_kernel.h"
#include "kernels/common/infer.h"
#include "kernels/common/reference_kernel.h"
#include "kernels/common/strided.h"

namespace weir {
namespace {

// ---- Range ----

int64_t CheckedCount(double count) {
  WEIR_CHECK(count <= static_cast<double>(int64_t{1} << 31), ErrorCode::kInvalidShape,
             "a range of ", count, " elements is too large; at most 2^31");
  return count > 0 ? static_cast<int64_t>(count) : 0;  // NaN is 0
}

int64_t IntCount(int64_t start, int64_t limit, int64_t delta) {
  WEIR_CHECK(delta != 0, ErrorCode::kInvalidModel, "delta is 0");
  if (delta > 0 ? limit <= start : limit >= start) return 0;
  // Unsigned: the distance of two int64 may not fit one.
  const uint64_t low = static_cast<uint64_t>(std::min(start, limit));
  const uint64_t distance = static_cast<uint64_t>(std::max(start, limit)) - low;
  const uint64_t step =
      delta > 0 ? static_cast<uint64_t>(delta) : uint64_t{0} - static_cast<uint64_t>(delta);
  const uint64_t whole_steps = (distance - 1) / step;
  return CheckedCount(static_cast<double>(whole_steps) + 1);
}

int64_t FloatCount(double start, double limit, double delta) {
  WEIR_CHECK(delta != 0, ErrorCode::kInvalidModel, "delta is 0");
  return CheckedCount(std::ceil((limit - start) / delta));
}

// One element, or unknown.
Dim ScalarContent(const InferContext& c, size_t i) {
  const auto content = Content(c, i);
  return content && content->size() == 1 ? (*content)[0] : Dim::Unknown();
}

void InferIntRange(InferContext& c, DType dtype) {
  const Dim start = ScalarContent(c, 0), limit = ScalarContent(c, 1), delta = ScalarContent(c, 2);
  if (!start.IsConstant() || !limit.IsConstant() || !delta.IsConstant()) {
    const Dim distance = limit - start;
    Dim size =
        delta.IsConstant() && delta.Constant() != 0 ? DivExact(distance, delta) : Dim::Unknown();
    if (size.IsKnown() && size.Evaluate(1, 1) < 0) size = 0;
    return c.SetOutput(0, dtype, {size});
  }
  const int64_t count = IntCount(start.Constant(), limit.Constant(), delta.Constant());
  c.SetOutput(0, dtype, {count});
  if (count > kMaxContent) return;
  Shape content;
  for (int64_t k = 0; k < count; ++k) content.push_back(start.Constant() + k * delta.Constant());
  c.SetContent(0, std::move(content));
}

void InferRange(InferContext& c) {
  const DType dtype = c.in(0)->dtype;
  for (size_t i = 0; i < 3; ++i) {
    if (c.HasShape(i) && IsConcrete(c.shape(i)) && NumElements(ToDims(c.shape(i))) != 1) {
      c.Fail(StrCat("input ", i, " must hold one element, got ", ToString(c.shape(i))));
    }
  }
  if (!IsFloat(dtype)) return InferIntRange(c, dtype);
  double bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    const Value* value = c.in(i);
    if (value == nullptr || value->role != Role::kConstant || !value->data) {
      return c.SetOutput(0, dtype, {Dim::Unknown()});
    }
    bounds[i] = value->data->AsDoubles().at(0);
  }
  c.SetOutput(0, dtype, {FloatCount(bounds[0], bounds[1], bounds[2])});
}

template <class T>
void RangeReference(Eval<T>& e) {
  for (size_t i = 0; i < 3; ++i) {
    WEIR_CHECK(e.x(i).elements() == 1 && e.x(i).is_float() == e.x(0).is_float(),
               ErrorCode::kInvalidModel, "input ", i, " must hold one ", DTypeName(e.x(0).dtype),
               ", got ", DTypeName(e.x(i).dtype), ToString(e.x(i).dims));
  }
  if (!e.x(0).is_float()) {
    const int64_t start = IntOf(e, 0), delta = IntOf(e, 2);
    e.out[0] = Array<T>::Ints({IntCount(start, IntOf(e, 1), delta)}, e.x(0).dtype);
    for (size_t k = 0; k < e.out[0].i.size(); ++k)
      e.out[0].i[k] = start + static_cast<int64_t>(k) * delta;
    return;
  }
  const T start = e.x(0).f[0], delta = e.x(2).f[0];
  e.out[0] = Array<T>::Floats({FloatCount(Real(start), Real(e.x(1).f[0]), Real(delta))});
  e.out[0].dtype = e.x(0).dtype;
  for (size_t k = 0; k < e.out[0].f.size(); ++k) {
    e.out[0].f[k] = start + T(static_cast<float>(k)) * delta;
  }
}

// ---- ConstantOfShape ----

struct Fill {
  DType dtype = DType::kFloat32;
  double f = 0;
  int64_t i = 0;
};

Fill FillOf(const Attributes& attributes) {
  const Attribute* value = attributes.Find("value");
  if (value == nullptr) return {};
  const auto* tensor = std::get_if<TensorDataPtr>(value);
  WEIR_CHECK(tensor != nullptr && (*tensor)->elements() == 1, ErrorCode::kInvalidModel,
             "attribute 'value' must be a tensor of one element");
  Fill fill{.dtype = (*tensor)->dtype()};
  if (IsFloat(fill.dtype)) {
    fill.f = (*tensor)->AsDoubles()[0];
  } else {
    fill.i = (*tensor)->AsInts()[0];
  }
  return fill;
}

void CheckSizes(const Shape& shape) {
  for (const Dim& dim : shape) {
    WEIR_CHECK(!dim.IsConstant() || dim.Constant() >= 0, ErrorCode::kInvalidShape,
               "negative size in ", ToString(shape));
  }
}

void InferConstantOfShape(InferContext& c) {
  const Fill fill = FillOf(c.node.attributes);
  const auto shape = Content(c, 0);
  if (!shape) return SetUnknown(c, fill.dtype, LengthOf(c, 0));
  CheckSizes(*shape);
  c.SetOutput(0, fill.dtype, *shape);
  if (IsFloat(fill.dtype) || !IsConcrete(*shape) || NumElements(ToDims(*shape)) > kMaxContent)
    return;
  c.SetContent(0, Shape(static_cast<size_t>(NumElements(ToDims(*shape))), Dim(fill.i)));
}

template <class T>
void ConstantOfShapeReference(Eval<T>& e) {
  const Fill fill = FillOf(e.attributes);
  const Dims& dims = IntsOf(e, 0);
  CheckedElements(dims);
  e.out[0] = IsFloat(fill.dtype) ? Array<T>::Floats(dims, T(static_cast<float>(fill.f)))
                                 : Array<T>::Ints(dims, fill.dtype, fill.i);
  e.out[0].dtype = fill.dtype;
}

void LaunchConstantOfShape(KernelContext& c) {
  const Tensor& y = c.outputs[0];
  const Attribute* value = c.attributes().Find("value");
  const std::byte zeros[8] = {};
  const std::byte* element =
      value == nullptr ? zeros : std::get<TensorDataPtr>(*value)->bytes().data();
  FillElements(y.bytes, element, y.elements(), BytesOf(y.dtype, 1));
}

// ---- EyeLike ----

DType EyeType(const Attributes& attributes, DType like) {
  if (!attributes.Has("dtype")) return like;
  const DType dtype = DTypeFromOnnx(attributes.Int("dtype"));
  WEIR_CHECK(dtype != DType::kUndefined, ErrorCode::kInvalidModel, "element type ",
             attributes.Int("dtype"), " is not supported");
  return dtype;
}

void InferEyeLike(InferContext& c) {
  const DType dtype = EyeType(c.node.attributes, c.in(0)->dtype);
  if (!c.HasShape(0)) return SetUnknown(c, dtype, 2);
  if (c.shape(0).size() != 2) c.Fail(StrCat("x must have rank 2, got ", ToString(c.shape(0))));
  c.SetOutput(0, dtype, c.shape(0));
}

template <class T>
void EyeLikeReference(Eval<T>& e) {
  const Dims& dims = e.x(0).dims;
  WEIR_CHECK(dims.size() == 2, ErrorCode::kInvalidShape, "x must have rank 2, got ",
             ToString(dims));
  CheckedElements(dims);
  const int64_t k = e.attributes.Int("k", 0);
  const DType dtype = EyeType(e.attributes, e.x(0).dtype);
  Array<T>& y = e.out[0];
  y = IsFloat(dtype) ? Array<T>::Floats(dims) : Array<T>::Ints(dims, dtype);
  y.dtype = dtype;
  for (int64_t i = 0; i < dims[0]; ++i) {
    for (int64_t j = 0; j < dims[1]; ++j) {
      if (j - i != k) continue;
      if (y.is_float()) {
        y.f[i * dims[1] + j] = T(1);
      } else {
        y.i[i * dims[1] + j] = 1;
      }
    }
  }
}

// ---- OneHot ----

// dims of ids with `depth` inserted at axis.
Shape OneHotShape(Shape ids, const Dim& depth, int64_t axis) {
  WEIR_CHECK(!depth.IsConstant() || depth.Constant() >= 0, ErrorCode::kInvalidShape, "depth ",
             ToString(depth), " is negative");
  ids.insert(ids.begin() + NormalizeAxis(axis, Rank(ids) + 1), depth);
  return ids;
}

// Which of [off, on] every element of the result is.
IndexMap OneHotMap(const Dims& id_dims, const std::vector<int64_t>& ids, int64_t depth,
                   int64_t axis) {
  axis = NormalizeAxis(axis, Rank(id_dims) + 1);
  const Dims strides = Strides(id_dims);
  const Dims dims = ToDims(OneHotShape(ToShape(id_dims), depth, axis));
  return MakeIndexMap(dims, [&](const Dims& at) {
    int64_t position = 0;
    for (size_t i = 0; i < strides.size(); ++i) {
      position += at[static_cast<int64_t>(i) < axis ? i : i + 1] * strides[i];
    }
    const int64_t id = ids[static_cast<size_t>(position)], hot = at[static_cast<size_t>(axis)];
    return int64_t{id == hot || (id < 0 && id + depth == hot)};
  });
}

void InferOneHot(InferContext& c) {
  const DType dtype = c.in(2)->dtype;
  if (!c.HasShape(0)) return c.SetDType(0, dtype);
  const int64_t axis = c.node.attributes.Int("axis", -1);
  const Dim depth = ScalarContent(c, 1);
  c.SetOutput(0, dtype, OneHotShape(c.shape(0), depth, axis));
  const auto ids = ConstantContent(c, 0);
  // The exporters write repeat counts ([1, k, 1]) as a one-hot of [1, k].
  if (ids && CarriesContent(c, 2) && Content(c, 2)->size() == 2) {
    MapContent(c, OneHotMap(ToDims(c.shape(0)), *ids, depth.Constant(), axis), 2);
  }
}

// Elements as integers; ids and depth of OneHot may be of any number type.
template <class T>
std::vector<int64_t> Integers(const Array<T>& a) {
  std::vector<int64_t> out = a.i;
  for (const T& v : a.f) out.push_back(FloatToInt(Real(v), DType::kInt64));
  return out;
}

template <class T>
void OneHotReference(Eval<T>& e) {
  const Array<T>&depth = e.x(1), &values = e.x(2);
  WEIR_CHECK(depth.elements() == 1 && values.elements() == 2, ErrorCode::kInvalidShape,
             "depth must hold one element and values two, got ", ToString(depth.dims), " and ",
             ToString(values.dims));
  e.out[0] = Take(values, OneHotMap(e.x(0).dims, Integers(e.x(0)), Integers(depth)[0],
                                    e.attributes.Int("axis", -1)));
}

}  // namespace

const OpSchema& RangeSchema() {
  static const OpSchema schema{
      .name = "Range",
      .doc =
          "y[k] = start + k * delta for k < max(0, ceil((limit - start) / delta)).\n"
          "start, limit, delta: scalars of one type; delta != 0.  Source: ONNX Range-11.",
      .min_inputs = 3,
      .max_inputs = 3,
      .infer = InferRange,
      WEIR_REFERENCE(RangeReference),
      .cases = []() -> std::vector<OpCase> {
        return {{"up", {IntInput(2), IntInput(9), IntInput(3)}},
                {"down", {IntInput(5), IntInput(-2), IntInput(-2)}},
                {"none", {IntInput(5), IntInput(5), IntInput(1)}}};
      },
      .nondifferentiable_inputs = {0, 1, 2},
  };
  return schema;
}

const OpSchema& ConstantOfShapeSchema() {
  static const OpSchema schema{
      .name = "ConstantOfShape",
      .doc =
          "y = tensor of dims `shape` filled with the one element of attribute value (float 0).\n"
          "shape: int64 [r].  Source: ONNX ConstantOfShape-21.",
      .infer = InferConstantOfShape,
      WEIR_REFERENCE(ConstantOfShapeReference),
      .cases = []() -> std::vector<OpCase> {
        const Attributes seven = {{"value", TensorData::FromInts({1}, {7})}};
        const Attributes half = {{"value", TensorData::FromFloats({1}, {0.5f})}};
        return {{"zeros", {IntsInput({2, 3})}},
                {"ints", {IntsInput({5})}, seven},
                {"scalar", {IntsInput({})}, half},
                {"empty", {IntsInput({0, 3})}, half}};
      },
      .nondifferentiable_inputs = {0},
  };
  return schema;
}

const OpSchema& EyeLikeSchema() {
  static const OpSchema schema{
      .name = "EyeLike",
      .doc =
          "y[i,j] = 1 where j - i = k (0), else 0; dims of x, element type dtype (that of x).\n"
          "Source: ONNX EyeLike-9.",
      .infer = InferEyeLike,
      WEIR_REFERENCE(EyeLikeReference),
      .cases = []() -> std::vector<OpCase> {
        return {{"float", {{.dims = {3, 4}}}},
                {"ints", {{.dims = {3, 2}}}, {{"k", int64_t{-1}}, {"dtype", int64_t{7}}}},
                {"empty", {{.dims = {0, 2}}}}};
      },
      .nondifferentiable_inputs = {0},
  };
  return schema;
}

const OpSchema& OneHotSchema() {
  static const OpSchema schema{
      .name = "OneHot",
      .doc =
          "y[.., d, ..] = values[1] where ids[..] = d, else values[0]; d runs over depth at axis\n"
          "(-1).\n"
          "ids: any number type, negative counts from the back, out of range is all off; depth:\n"
          "one element; values: [off, on].  Source: ONNX OneHot-11.",
      .min_inputs = 3,
      .max_inputs = 3,
      .infer = InferOneHot,
      WEIR_REFERENCE(OneHotReference),
      .cases = []() -> std::vector<OpCase> {
        return {{"last", {IntsInput({0, 2, -1, 9}), IntInput(3), IntsInput({0, 1})}},
                {"first",
                 {IntsInput({2, 2}, {1, 0, 2, 1}), IntsInput({3}), IntsInput({5, 7})},
                 {{"axis", int64_t{0}}}},
                {"floats",
                 {IntsInput({1, 0}),
                  IntInput(2),
                  {.kind = CaseInput::Kind::kFloats, .dims = {2}, .floats = {-1, 1}}}},
                {"empty", {IntsInput({}), IntInput(4), IntsInput({0, 1})}}};
      },
      .nondifferentiable_inputs = {0, 1, 2},
  };
  return schema;
}

WEIR_REFERENCE_CPU_KERNEL(Range)
WEIR_REFERENCE_CPU_KERNEL(EyeLike)
WEIR_REFERENCE_CPU_KERNEL(OneHot)

const Kernel& ConstantOfShapeCpuKernel() {
  static const Kernel kernel{.launch = LaunchConstantOfShape, .unsupported = RefusePacked};
  return kernel;
}

}  // namespace weir
