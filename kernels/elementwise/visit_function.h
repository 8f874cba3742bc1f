#pragma once
#include <string>

#include "kernels/elementwise/functions.h"

namespace weir {

// Calls visitor(f) with the scalar function behind the unary op `name`. Throws InvalidModel when
// none.
template <class Visitor>
void VisitFunction(const std::string& name, const Attributes& attributes, const Visitor& visitor) {
#define WEIR_VISIT(Name) \
  if (name == #Name) return visitor(Name##Function(attributes));
  WEIR_VISIT(Log)
  WEIR_VISIT(Sqrt)
  WEIR_VISIT(Reciprocal)
  WEIR_VISIT(Sin)
  WEIR_VISIT(Cos)
  WEIR_VISIT(Tanh)
  WEIR_VISIT(Sigmoid)
  WEIR_VISIT(Erf)
  WEIR_VISIT(Softplus)
  WEIR_VISIT(Abs)
  WEIR_VISIT(Relu)
  WEIR_VISIT(LeakyRelu)
  WEIR_VISIT(HardSigmoid)
  WEIR_VISIT(Swish)
  WEIR_VISIT(Gelu)
#undef WEIR_VISIT
  throw Error(ErrorCode::kInvalidModel, StrCat("UnaryGradient: no function '", name, "'"));
}

}  // namespace weir
