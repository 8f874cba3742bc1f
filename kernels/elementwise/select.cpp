// Where and Clip.
#include "kernels/elementwise/gradients.h"
#include "kernels/elementwise/schemas.h"

namespace weir {
namespace {

template <class T>
void WhereReference(Eval<T>& e) {
  std::vector<std::vector<int64_t>> index;
  const Dims dims = BroadcastInputs(e, index);
  const Array<T>&c = e.x(0), &a = e.x(1), &b = e.x(2);
  WEIR_CHECK(!c.is_float() && a.dtype == b.dtype, ErrorCode::kInvalidModel, "Where(",
             DTypeName(c.dtype), ", ", DTypeName(a.dtype), ", ", DTypeName(b.dtype),
             "): expected bool and one type");
  Array<T> y = a.is_float() ? Array<T>::Floats(dims) : Array<T>::Ints(dims, a.dtype);
  y.dtype = a.dtype;
  for (size_t k = 0; k < y.f.size(); ++k)
    y.f[k] = c.i[index[0][k]] ? a.f[index[1][k]] : b.f[index[2][k]];
  for (size_t k = 0; k < y.i.size(); ++k)
    y.i[k] = c.i[index[0][k]] ? a.i[index[1][k]] : b.i[index[2][k]];
  e.out[0] = std::move(y);
}

void InferWhere(InferContext& c) {
  if (c.in(0)->dtype != DType::kUndefined && c.in(0)->dtype != DType::kBool) {
    c.Fail(StrCat("the condition is ", DTypeName(c.in(0)->dtype), ", expected bool"));
  }
  InferBroadcast(c, 1);
  PropagateContent(c, [](const Node&, const std::vector<Dim>& x) {
    const auto condition = ConstantOf(x[0]);
    if (condition) return *condition ? x[1] : x[2];
    return x[1] == x[2] ? x[1] : Dim::Unknown();
  });
}

// min(max(x, low), high): when low > high every element is high. NaN stays NaN.
template <class T>
void ClipReference(Eval<T>& e) {
  Array<T> y = e.x(0);
  for (size_t k : {1, 2}) {
    if (!e.has(k)) continue;
    WEIR_CHECK(e.x(k).elements() == 1 && e.x(k).is_float() == y.is_float(),
               ErrorCode::kInvalidModel, "Clip: bound ", k, " is ", DTypeName(e.x(k).dtype),
               ToString(e.x(k).dims), ", expected a ", DTypeName(y.dtype), " scalar");
    const bool low = k == 1;
    for (T& v : y.f) {
      const T bound = e.x(k).f[0];
      if (low ? Real(v) < Real(bound) : Real(v) > Real(bound)) v = bound;
    }
    for (int64_t& v : y.i) v = low ? std::max(v, e.x(k).i[0]) : std::min(v, e.x(k).i[0]);
  }
  e.out[0] = std::move(y);
}

void InferClip(InferContext& c) {
  CommonDType(c);
  InferUnary(c);
  for (size_t k : {1, 2}) {
    if (c.HasShape(k) && (c.shape(k).size() > 1 || !(Product(c.shape(k)) == Dim(1)))) {
      c.Fail(StrCat(k == 1 ? "min" : "max", " has shape ", ToString(c.shape(k)),
                    ", expected a scalar"));
    }
  }
  const auto* x = c.content(0);
  if (x == nullptr) return;
  std::vector<Dim> y = *x;
  for (size_t k : {1, 2}) {
    if (c.in(k) == nullptr) continue;
    if (c.content(k) == nullptr || c.content(k)->size() != 1) return;
    const Dim bound = (*c.content(k))[0];
    for (Dim& v : y) {
      const auto order = Compare(v, bound);
      if (!order) {
        v = Dim::Unknown();
      } else if (k == 1 ? *order < 0 : *order > 0) {
        v = bound;
      }
    }
  }
  c.SetContent(0, std::move(y));
}

CaseInput Scalar(double v) { return {.kind = CaseInput::Kind::kFloats, .dims = {}, .floats = {v}}; }
constexpr CaseInput::Kind kAbsent = CaseInput::Kind::kAbsent;

std::vector<OpCase> ClipCases() {
  const CaseInput ints{.kind = CaseInput::Kind::kInts, .dims = {4}, .ints = {-3, 0, 2, 9}};
  const auto bound = [](int64_t v) {
    return CaseInput{.kind = CaseInput::Kind::kInts, .dims = {}, .ints = {v}};
  };
  return {{"both", {{.dims = {3, 67}}, Scalar(-0.5), Scalar(0.75)}},
          {"min_only", {{.dims = {3, 67}}, Scalar(-0.5)}},
          {"max_only", {{.dims = {3, 67}}, {.kind = kAbsent}, Scalar(0.25)}},
          {"none", {{.dims = {3, 67}}}},
          {"crossed", {{.dims = {9}}, Scalar(1), Scalar(-1)}, {}, 1, false},
          {"nan",
           {{.kind = CaseInput::Kind::kFloats, .dims = {3}, .floats = {NAN, -INFINITY, INFINITY}},
            Scalar(-2),
            Scalar(2)},
           {},
           1,
           false},
          {"ints", {ints, bound(-1), bound(5)}, {}, 1, false},
          {"empty", {{.dims = {0}}, Scalar(0), Scalar(1)}, {}, 1, false}};
}

std::vector<OpCase> WhereCases() {
  const CaseInput mask{.kind = CaseInput::Kind::kInts,
                       .dims = {2, 3},
                       .ints = {1, 0, 1, 1, 0, 0},
                       .dtype = DType::kBool};
  const CaseInput row{
      .kind = CaseInput::Kind::kInts, .dims = {3}, .ints = {1, 0, 1}, .dtype = DType::kBool};
  const CaseInput ints{.kind = CaseInput::Kind::kInts, .dims = {3}, .ints = {5, 6, 7}};
  return {{"same", {mask, {.dims = {2, 3}}, {.dims = {2, 3}}}},
          {"scalar", {mask, {.dims = {2, 3}}, {.dims = {}}}},
          {"grow", {row, {.dims = {4, 5, 1}}, {.dims = {5, 3}}}},
          {"minus_inf",
           {mask,
            {.dims = {2, 3}},
            {.kind = CaseInput::Kind::kFloats,
             .dims = {1},
             .floats = {-INFINITY},
             .differentiable = false}},
           {},
           1,
           true},
          {"ints", {row, ints, ints}, {}, 1, false},
          {"empty", {row, {.dims = {0, 3}}, {.dims = {3}}}, {}, 1, false}};
}

}  // namespace

const OpSchema& WhereSchema() {
  static const OpSchema schema{.name = "Where",
                               .doc =
                                   "y = condition ? a : b, broadcast; condition bool, a and b one "
                                   "dtype.  Source: ONNX Where",
                               .min_inputs = 3,
                               .max_inputs = 3,
                               .infer = InferWhere,
                               WEIR_REFERENCE(WhereReference),
                               .gradient = WhereGradient,
                               .cost = ElementwiseCost,
                               .cases = WhereCases,
                               .elementwise = true,
                               .nondifferentiable_inputs = {0}};
  return schema;
}

const OpSchema& ClipSchema() {
  static const OpSchema schema{
      .name = "Clip",
      .doc =
          "y = min(max(x, low), high); low, high optional scalars of x's dtype; NaN stays.\n"
          "Gradient 1 for low <= x <= high, else 0; none for the bounds.  Source: ONNX Clip",
      .min_inputs = 1,
      .max_inputs = 3,
      .infer = InferClip,
      WEIR_REFERENCE(ClipReference),
      .gradient = ClipGradient,
      .cost = ElementwiseCost,
      .cases = ClipCases,
      .elementwise = true,
      .nondifferentiable_inputs = {1, 2}};
  return schema;
}

}  // namespace weir
