#include "optim/initial_values.h"

#include <algorithm>
#include <vector>

#include "graph/error.h"
#include "graph/parameter.h"
#include "graph_passes/parameter_kind.h"
#include "optim/held_state.h"
#include "optim/random.h"

namespace weir {
namespace {

// Of the shard that is held, in the whole: random values do not depend on who holds them.
int64_t FirstElement(const Value& parameter) {
  const auto& shard = parameter.parameter->shard;
  return shard ? shard->first * (NumElements(WholeDims(parameter)) / shard->total) : 0;
}

// Elements of this rank's shard from `first` on.
void Draw(const Value& parameter, const InitOptions& init, int64_t first, std::span<float> out) {
  switch (KindOf(parameter)) {
    case ParameterKind::kNormGain: std::fill(out.begin(), out.end(), 1.0f); break;
    case ParameterKind::kBias: std::fill(out.begin(), out.end(), 0.0f); break;
    case ParameterKind::kMatrix: FillNormal(out, FirstElement(parameter) + first, parameter.name, init.seed, 0, init.std); break;
  }
}

}  // namespace

void LoadParameters(const Graph& graph, const InitOptions& init, const ParameterWriter& write) {
  std::vector<float> drawn;
  for (const Value* parameter : graph.ValuesWithRole(Role::kParameter)) {
    if (HasAllData(graph, *parameter)) {
      write(*parameter, 0, LoadParameter(graph, *parameter));
      continue;
    }
    WEIR_CHECK(init.enabled, ErrorCode::kInvalidModel, "parameter '", parameter->name,
               "' has no bytes: its weights file is missing; add it, or train from random values with --init normal");
    const int64_t count = NumElements(ToDims(parameter->shape));
    for (int64_t first = 0; first < count; first += HeldState::kBeginPiece) {
      drawn.resize(static_cast<size_t>(std::min(HeldState::kBeginPiece, count - first)));
      Draw(*parameter, init, first, drawn);
      write(*parameter, first, drawn);
    }
  }
}

}  // namespace weir
