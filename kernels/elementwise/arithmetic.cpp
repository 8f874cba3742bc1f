// Add Sub Mul Div, and the variadic Min Max Sum Mean.
#include "kernels/elementwise/gradients.h"
#include "kernels/elementwise/schemas.h"

namespace weir {
namespace {

template <class Function>
OpSchema FoldSchema(const char* name, const char* formula, std::vector<OpCase> (*cases)()) {
  OpSchema schema;
  schema.name = name;
  schema.doc = StrCat(
      formula, "\nall inputs one dtype, broadcast to one shape as in NumPy; integers wrap.\n",
      "Folds inputs from left to right. Deterministic.  Source: ONNX ", name);
  schema.min_inputs = schema.max_inputs = 2;
  schema.reference_f32 = FoldReference<Function, float>;
  schema.reference_f64 = FoldReference<Function, double>;
  schema.reference_c128 = FoldReference<Function, std::complex<double>>;
  schema.cost = ElementwiseCost;
  schema.cases = cases;
  schema.elementwise = true;
  return schema;
}

template <Dim (*function)(const Dim&, const Dim&)>
void InferWithContent(InferContext& c) {
  InferBroadcast(c);
  PropagateContent(c, [](const Node&, const std::vector<Dim>& x) {
    Dim y = x[0];
    for (size_t i = 1; i < x.size(); ++i) y = function(y, x[i]);
    return y;
  });
}
Dim AddDim(const Dim& a, const Dim& b) { return a + b; }
Dim SubDim(const Dim& a, const Dim& b) { return a - b; }
Dim MulDim(const Dim& a, const Dim& b) { return a * b; }
Dim DivDim(const Dim& a, const Dim& b) {
  const auto x = ConstantOf(a), y = ConstantOf(b);
  if (x && y && *y != 0) return DivFunction{}.Int(*x, *y);
  return DivExact(a, b);
}
Dim MinDim(const Dim& a, const Dim& b) {
  const auto order = Compare(a, b);
  return !order ? Dim::Unknown() : *order < 0 ? a : b;
}
Dim MaxDim(const Dim& a, const Dim& b) {
  const auto order = Compare(a, b);
  return !order ? Dim::Unknown() : *order > 0 ? a : b;
}

// Mean folds like Sum and divides once.
template <class T>
void MeanReference(Eval<T>& e) {
  WEIR_CHECK(e.x(0).is_float(), ErrorCode::kInvalidModel, "Mean: floats expected, got ",
             DTypeName(e.x(0).dtype));
  FoldReference<AddFunction>(e);
  for (T& v : e.out[0].f) v /= T(static_cast<float>(e.in.size()));
}

std::vector<OpCase> VariadicCases() {
  auto cases = BinaryCases();
  cases.push_back({"one", {{.dims = {3, 5}}}});
  cases.push_back({"three", {{.dims = {3, 1}}, {.dims = {4, 1, 5}}, {.dims = {}}}});
  return cases;
}

}  // namespace

#define WEIR_BINARY(Name, formula, cases)                             \
  const OpSchema& Name##Schema() {                                    \
    static const OpSchema schema = [] {                               \
      OpSchema s = FoldSchema<Name##Function>(#Name, formula, cases); \
      s.infer = InferWithContent<Name##Dim>;                          \
      s.gradient = Name##Gradient;                                    \
      return s;                                                       \
    }();                                                              \
    return schema;                                                    \
  }
WEIR_BINARY(Add, "y = a + b", BinaryCases)
WEIR_BINARY(Sub, "y = a - b", BinaryCases)
WEIR_BINARY(Mul, "y = a * b", BinaryCases)
WEIR_BINARY(Div, "y = a / b; integers truncate towards zero, division by zero is an error",
            BinaryPositiveCases)
#undef WEIR_BINARY

#define WEIR_VARIADIC(Name, Function, formula, inference, derivative)   \
  const OpSchema& Name##Schema() {                                      \
    static const OpSchema schema = [] {                                 \
      OpSchema s = FoldSchema<Function>(#Name, formula, VariadicCases); \
      s.infer = inference;                                              \
      s.gradient = derivative;                                          \
      s.min_inputs = 1;                                                 \
      s.max_inputs = -1;                                                \
      return s;                                                         \
    }();                                                                \
    return schema;                                                      \
  }
WEIR_VARIADIC(Min, MinFunction, "y = min(x0, x1, ...); NaN wins", InferWithContent<MinDim>,
              ExtremeGradient)
WEIR_VARIADIC(Max, MaxFunction, "y = max(x0, x1, ...); NaN wins", InferWithContent<MaxDim>,
              ExtremeGradient)
WEIR_VARIADIC(Sum, AddFunction, "y = x0 + x1 + ...", InferWithContent<AddDim>, AddGradient)
#undef WEIR_VARIADIC

const OpSchema& MeanSchema() {
  static const OpSchema schema = [] {
    OpSchema s = FoldSchema<AddFunction>("Mean", "y = (x0 + x1 + ...) / n", VariadicCases);
    s.infer = [](InferContext& c) { InferBroadcast(c); };
    s.gradient = MeanGradient;
    s.reference_f32 = MeanReference<float>;
    s.reference_f64 = MeanReference<double>;
    s.reference_c128 = MeanReference<std::complex<double>>;
    s.min_inputs = 1;
    s.max_inputs = -1;
    return s;
  }();
  return schema;
}

}  // namespace weir
