#pragma once
#include <functional>
#include <span>

#include "optim/training_session.h"

namespace weir {

// Hands the values that each parameter of `graph` begins with, of this rank's shard, to `write`, in order and in pieces of at most
// HeldState::kBeginPiece: those of the model's file, or, where it has none, random ones. Throws InvalidModel when it has none and
// `init` is not enabled.
using ParameterWriter = std::function<void(const Value& parameter, int64_t first, std::span<const float> values)>;
void LoadParameters(const Graph& graph, const InitOptions& init, const ParameterWriter& write);

}  // namespace weir
