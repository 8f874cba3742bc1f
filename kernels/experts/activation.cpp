#include "kernels/experts/activation.h"

namespace weir {
namespace {

GateActivation KindOf(const std::string& name) {
  if (name == "swiglu" || name == "silu") return GateActivation::kSwiglu;
  if (name == "gelu") return GateActivation::kGelu;
  if (name == "gelu_tanh") return GateActivation::kGeluTanh;
  if (name == "relu") return GateActivation::kRelu;
  throw Error(ErrorCode::kInvalidModel,
              StrCat("Experts: activation is '", name,
                     "', expected swiglu, silu, gelu, gelu_tanh or relu"));
}

}  // namespace

ExpertActivation::ExpertActivation(const Attributes& attributes)
    : kind(KindOf(attributes.String("activation", "swiglu"))),
      alpha(static_cast<float>(attributes.Float("alpha", 1))),
      beta(static_cast<float>(attributes.Float("beta", 0))),
      limit(
          static_cast<float>(attributes.Float("limit", std::numeric_limits<double>::infinity()))) {
  if (attributes.String("activation", "swiglu") == "silu") alpha = 1;
}

}  // namespace weir
