#include "optim/untrained_tensors.h"

#include <algorithm>

#include "graph_passes/parameters.h"
#include "optim/tied_weights.h"
#include "optim/training_session.h"

namespace weir {
namespace {

using Parameters = std::vector<Value*>;

bool AllAreNamed(const Parameters& parameters) {
  return std::ranges::none_of(parameters, [](const Value* p) { return p->parameter->originals.empty(); });
}

// Frozen parameters, and what is none by its use; single numbers, which exporters write into graphs, aside.
std::vector<const Value*> Constants(const Graph& canonical) {
  std::vector<const Value*> constants;
  for (const auto& value : canonical.values()) {
    if (IsInitializer(value.get()) && !value->uses.empty() && NumElements(ToDims(value->shape)) > 1) constants.push_back(value.get());
  }
  return constants;
}

// Of a constant without a name of the framework's: once, as the model's file has it.
void AddFromModel(const Graph& canonical, const Value& constant, NamedTensors& tensors) {
  for (const auto& block : BlocksOf(constant.parameter->initializers)) {
    const auto there = canonical.initializers.find(block[0].tensor);
    if (there != canonical.initializers.end() && there->second != nullptr) tensors.insert(*there);
  }
}

}  // namespace

Safetensors UntrainedTensors(const Graph& canonical, const Safetensors* names) {
  Safetensors untrained;
  const Parameters parameters = canonical.ValuesWithRole(Role::kParameter);
  const bool all = names != nullptr && AllAreNamed(parameters);
  for (const Value* constant : Constants(canonical)) {
    const auto& originals = constant->parameter->originals;
    if (originals.empty() || names == nullptr) {
      if (!all) AddFromModel(canonical, *constant, untrained.tensors);
      continue;
    }
    for (const ParameterPiece& piece : originals) {
      if (const auto it = names->tensors.find(piece.tensor); it != names->tensors.end()) untrained.tensors.insert(*it);
    }
  }
  if (names != nullptr) {
    for (const auto& entry : names->tensors) {
      if (all || !IsFloat(entry.second->dtype())) untrained.tensors.insert(entry);
    }
    for (const auto& [name, kept] : TiedNamesIn(*names)) {
      if (untrained.tensors.contains(kept)) untrained.metadata[name] = kept;
    }
  }
  for (const Value* parameter : parameters) {
    for (const ParameterPiece& piece : SourcePieces(*parameter, true)) untrained.tensors.erase(piece.tensor);
  }
  return untrained;
}

}  // namespace weir
