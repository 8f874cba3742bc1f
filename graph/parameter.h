#pragma once
#include <functional>
#include <span>
#include <vector>

#include "graph/graph.h"

namespace weir {

// Calls body(source_index, canonical_index) for every element of one piece, source_index counting in
// the row-major order of the piece's tensor and canonical_index in that of `canonical`.
void ForEachElement(const ParameterPiece& piece, const Dims& canonical,
                    const std::function<void(int64_t, int64_t)>& body);

// Canonical values of a parameter, or of the shard of it that is held, assembled from its initializers in
// `graph.initializers`.
// Throws InvalidModel naming the tensor when its bytes are missing.
std::vector<float> LoadParameter(const Graph& graph, const Value& parameter);
// The canonical dims of all of it, whatever shard is held: what its pieces refer to.
Dims WholeDims(const Value& parameter);
bool HasAllData(const Graph& graph, const Value& parameter);

// Inverse: the values of one source tensor of the parameter, gathered from canonical `values`.
std::vector<float> ExtractPiece(const ParameterPiece& piece, const Dims& canonical,
                                std::span<const float> values);

// The dims of the block that `piece` fills in the canonical tensor (after perm, before offset).
Dims PieceExtent(const ParameterPiece& piece);

}  // namespace weir
