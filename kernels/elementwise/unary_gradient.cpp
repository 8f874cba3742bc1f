#include "kernels/elementwise/schemas.h"
#include "kernels/elementwise/visit_function.h"

namespace weir {
namespace {

template <class T>
void UnaryGradientReference(Eval<T>& e) {
  const Array<T>&x = e.floats(0), &dy = e.floats(1);
  e.out[0] = Array<T>::Floats(x.dims);
  VisitFunction(e.attributes.String("function", ""), e.attributes, [&](const auto& f) {
    for (size_t k = 0; k < x.f.size(); ++k) e.out[0].f[k] = dy.f[k] * f.Slope(x.f[k]);
  });
}

std::vector<OpCase> Cases() {
  std::vector<OpCase> cases;
  for (const char* name :
       {"Log", "Sqrt", "Reciprocal", "Sin", "Cos", "Tanh", "Sigmoid", "Erf", "Softplus", "Abs",
        "Relu", "LeakyRelu", "HardSigmoid", "Swish", "Gelu"}) {
    const CaseInput x{.kind = CaseInput::Kind::kPositive, .dims = {3, 67}};
    cases.push_back({name, {x, {.dims = {3, 67}}}, {{"function", std::string(name)}}});
  }
  for (const char* name : {"Tanh", "Sigmoid", "Softplus", "Swish", "Gelu"}) {
    const CaseInput x{
        .kind = CaseInput::Kind::kFloats, .dims = {6}, .floats = {-1e4, 1e4, -50, 50, 0, -8}};
    cases.push_back(
        {std::string(name) + "_extreme", {x, {.dims = {6}}}, {{"function", std::string(name)}}});
  }
  cases.push_back({"Gelu_tanh",
                   {{.dims = {5, 67}, .scale = 3}, {.dims = {5, 67}}},
                   {{"function", std::string("Gelu")}, {"approximate", std::string("tanh")}}});
  cases.push_back({"Swish_alpha",
                   {{.dims = {5, 67}, .scale = 3}, {.dims = {5, 67}}},
                   {{"function", std::string("Swish")}, {"alpha", 1.702}}});
  return cases;
}

}  // namespace

const OpSchema& UnaryGradientSchema() {
  static const OpSchema schema{
      .name = "UnaryGradient",
      .domain = "ai.weir",
      .doc =
          "dx = dy * f'(x), f the op named by the attribute `function`, with that op's "
          "attributes.\n"
          "inputs x, dy of one shape; elementwise. Deterministic. Cost: 12N bytes.",
      .min_inputs = 2,
      .max_inputs = 2,
      .infer = InferUnary,
      WEIR_REFERENCE(UnaryGradientReference),
      .cost = ElementwiseCost,
      .cases = Cases,
      .elementwise = true};
  return schema;
}

}  // namespace weir
