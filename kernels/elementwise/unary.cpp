#include "kernels/elementwise/gradients.h"
#include "kernels/elementwise/schemas.h"

namespace weir {
namespace {

template <class Function>
OpSchema UnarySchema(const char* name, const char* formula, std::vector<OpCase> (*cases)(),
                     void (*gradient)(GradientContext&) = UnaryGradient,
                     void (*infer)(InferContext&) = InferUnary) {
  OpSchema schema;
  schema.name = name;
  schema.doc =
      StrCat(formula, "\nelementwise; y has x's dtype and shape. Deterministic.\n",
             "Cost: one evaluation per element, 2N*sizeof(dtype) bytes.  Source: ONNX ", name);
  schema.infer = infer;
  schema.reference_f32 = UnaryReference<Function, float>;
  schema.reference_f64 = UnaryReference<Function, double>;
  schema.reference_c128 = UnaryReference<Function, std::complex<double>>;
  schema.gradient = gradient;
  schema.cost = ElementwiseCost;
  schema.cases = cases;
  schema.elementwise = true;
  return schema;
}

// Infers x's shape and carries integer contents through `function`.
template <Dim (*function)(const Dim&)>
void InferWithContent(InferContext& c) {
  InferUnary(c);
  PropagateContent(c, [](const Node&, const std::vector<Dim>& x) { return function(x[0]); });
}
Dim NegDim(const Dim& x) { return Dim(-1) * x; }
Dim SignDim(const Dim& x) {
  const auto sign = Compare(x, 0);
  return sign ? Dim(*sign) : Dim::Unknown();
}
Dim AbsDim(const Dim& x) { return SignDim(x) * x; }
Dim ReluDim(const Dim& x) {
  const auto sign = Compare(x, 0);
  return !sign ? Dim::Unknown() : *sign < 0 ? Dim(0) : x;
}

}  // namespace

#define WEIR_UNARY(Name, ...)                                                       \
  const OpSchema& Name##Schema() {                                                  \
    static const OpSchema schema = UnarySchema<Name##Function>(#Name, __VA_ARGS__); \
    return schema;                                                                  \
  }
WEIR_UNARY(Neg, "y = -x (integers wrap)", UnaryCases, NegGradient, InferWithContent<NegDim>)
WEIR_UNARY(Abs, "y = |x|; slope 0 at 0", UnaryCases, UnaryGradient, InferWithContent<AbsDim>)
WEIR_UNARY(Sign, "y = -1, 0 or 1", UnaryFlatCases, FlatGradient, InferWithContent<SignDim>)
WEIR_UNARY(Relu, "y = max(x, 0); slope 0 at 0", UnaryCases, UnaryGradient,
           InferWithContent<ReluDim>)
WEIR_UNARY(Exp, "y = e^x", UnaryBoundedCases, ExpGradient)
WEIR_UNARY(Log, "y = ln(x)", UnaryPositiveCases)
WEIR_UNARY(Sqrt, "y = sqrt(x)", UnaryPositiveCases)
WEIR_UNARY(Reciprocal, "y = 1 / x", UnaryPositiveCases)
WEIR_UNARY(Floor, "y = floor(x); slope 0", UnaryFlatCases, FlatGradient)
WEIR_UNARY(Ceil, "y = ceil(x); slope 0", UnaryFlatCases, FlatGradient)
WEIR_UNARY(Round, "y = round(x), halves to even; slope 0", UnaryFlatCases, FlatGradient)
WEIR_UNARY(Sin, "y = sin(x)", UnaryBoundedCases)
WEIR_UNARY(Cos, "y = cos(x)", UnaryBoundedCases)
WEIR_UNARY(Tanh, "y = tanh(x)", UnaryCases)
WEIR_UNARY(Sigmoid, "y = 1 / (1 + e^-x)", UnaryCases)
WEIR_UNARY(Erf, "y = erf(x)", UnaryCases)
WEIR_UNARY(Softplus, "y = ln(1 + e^x)", UnaryCases)
WEIR_UNARY(HardSigmoid, "y = max(0, min(1, alpha * x + beta)); alpha 0.2, beta 0.5", UnaryCases)
WEIR_UNARY(LeakyRelu, "y = x < 0 ? alpha * x : x; alpha 0.01", UnaryCases)
WEIR_UNARY(Swish, "y = x * sigmoid(alpha * x); alpha 1", UnaryCases)
WEIR_UNARY(Gelu, "y = x * Phi(x); approximate 'none' (erf) or 'tanh'", UnaryCases)
#undef WEIR_UNARY

}  // namespace weir
