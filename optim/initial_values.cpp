#include "optim/initial_values.h"

#include <algorithm>
#include <vector>

#include "backend/cpu/parallel.h"
#include "graph/error.h"
#include "graph/parameter.h"
#include "graph/parameter_lines.h"
#include "graph_passes/parameter_kind.h"
#include "importer/mapped_file.h"
#include "optim/held_state.h"
#include "optim/random.h"

namespace weir {
namespace {

// Of the shard that is held, in the whole: random values do not depend on who holds them.
int64_t FirstElement(const Value& parameter) {
  const auto& shard = parameter.parameter->shard;
  return shard ? shard->first * (NumElements(WholeDims(parameter)) / shard->total) : 0;
}

// Elements of this rank's shard from `first` on, where its file has none.
void Draw(const Value& parameter, const InitOptions& init, int64_t first, std::span<float> out) {
  switch (KindOf(parameter)) {
    case ParameterKind::kNormGain: std::fill(out.begin(), out.end(), 1.0f); break;
    case ParameterKind::kBias: std::fill(out.begin(), out.end(), 0.0f); break;
    case ParameterKind::kMatrix: FillNormal(out, FirstElement(parameter) + first, parameter.name, init.seed, 0, init.std); break;
  }
}

void Load(const Graph& graph, const Value& parameter, int64_t first, std::span<float> out) {
  ParallelFor(std::ssize(out), int64_t{1} << 14, [&](int64_t begin, int64_t end) {
    LoadParameterPart(graph, parameter, first + begin, out.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
  });
}

}  // namespace

void LoadParameters(const Graph& graph, const InitOptions& init, const ParameterWriter& write) {
  std::vector<float> values;
  for (const Value* parameter : graph.ValuesWithRole(Role::kParameter)) {
    const bool stored = HasAllData(graph, *parameter);
    WEIR_CHECK(stored || init.enabled, ErrorCode::kInvalidModel, "parameter '", parameter->name,
               "' has no bytes: its weights file is missing; add it, or train from random values with --init normal");
    const int64_t count = NumElements(ToDims(parameter->shape));
    for (int64_t first = 0; first < count; first += HeldState::kBeginPiece) {
      values.resize(static_cast<size_t>(std::min(HeldState::kBeginPiece, count - first)));
      if (stored) {
        Load(graph, *parameter, first, values);
      } else {
        Draw(*parameter, init, first, values);
      }
      write(*parameter, first, values);
    }
  }
  MappedFile::CheckUnchanged();
}

}  // namespace weir
