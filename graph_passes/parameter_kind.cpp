#include "graph_passes/parameter_kind.h"

#include "graph/op_schema.h"

namespace weir {
namespace {

ParameterKind KindAt(const Use& use, const Value& parameter) {
  const std::string& op = use.node->op();
  const int i = use.index;
  if ((op == "RmsNorm" || op == "RMSNormalization" || op == "SimplifiedLayerNormalization") && i == 1) {
    return ParameterKind::kNormGain;
  }
  if (op == "LayerNormalization") return i == 1 ? ParameterKind::kNormGain : ParameterKind::kBias;
  if (op == "Linear" && i == 2) return ParameterKind::kBias;
  if ((op == "Experts" || op == "PipelinedLlep") && i >= 5) return ParameterKind::kBias;
  if (op == "Attention" && i == 3) return ParameterKind::kBias;
  if ((op == "Add" || op == "Sub") && parameter.shape.size() <= 1) return ParameterKind::kBias;
  if (op == "Mul" && parameter.shape.size() <= 1) return ParameterKind::kNormGain;
  return ParameterKind::kMatrix;
}

}  // namespace

ParameterKind KindOf(const Value& parameter) {
  // Backward and optimizer nodes use every parameter; forward uses decide.
  for (const Use& use : parameter.uses) {
    if (use.node->phase == Phase::kForward) return KindAt(use, parameter);
  }
  return ParameterKind::kMatrix;
}

}  // namespace weir
