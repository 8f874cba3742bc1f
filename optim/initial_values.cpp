#include "optim/initial_values.h"

#include <algorithm>
#include <vector>

#include "graph/error.h"
#include "graph/parameter.h"
#include "graph_passes/parameter_kind.h"
#include "optim/random.h"

namespace weir {
namespace {

// Of the shard that is held, in the whole: random values do not depend on who holds them.
int64_t FirstElement(const Value& parameter) {
  const auto& shard = parameter.parameter->shard;
  return shard ? shard->first * (NumElements(WholeDims(parameter)) / shard->total) : 0;
}

void FillParameter(const Graph& graph, const Value& parameter, const InitOptions& init,
                   std::span<float> out) {
  if (HasAllData(graph, parameter)) {
    const auto values = LoadParameter(graph, parameter);
    std::copy(values.begin(), values.end(), out.begin());
    return;
  }
  WEIR_CHECK(init.enabled, ErrorCode::kInvalidModel, "parameter '", parameter.name,
             "' has no bytes: its weights file is missing; add it, or train from random values with --init normal");
  switch (KindOf(parameter)) {
    case ParameterKind::kNormGain: std::fill(out.begin(), out.end(), 1.0f); break;
    case ParameterKind::kBias: std::fill(out.begin(), out.end(), 0.0f); break;
    case ParameterKind::kMatrix: FillNormal(out, FirstElement(parameter), parameter.name, init.seed, 0, init.std); break;
  }
}

}  // namespace

void LoadParameters(const Graph& graph, const InitOptions& init, const ParameterWriter& write) {
  std::vector<float> all;  // grows alone: a resize writes zeros into what it adds
  for (const Value* parameter : graph.ValuesWithRole(Role::kParameter)) {
    const auto count = static_cast<size_t>(NumElements(ToDims(parameter->shape)));
    if (all.size() < count) all.resize(count);
    const auto values = std::span(all).first(count);
    FillParameter(graph, *parameter, init, values);
    write(*parameter, values);
  }
}

}  // namespace weir
