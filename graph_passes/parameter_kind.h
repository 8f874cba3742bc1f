#pragma once
#include "graph/graph.h"

namespace weir {

// What a trained tensor is, by how the graph uses it, never by its name.
enum class ParameterKind : uint8_t {
  kMatrix,    // projections, embeddings, experts
  kNormGain,  // scale of a norm
  kBias,      // added: biases of Linear and Experts, norm shifts, attention sinks
};
ParameterKind KindOf(const Value& parameter);

}  // namespace weir
