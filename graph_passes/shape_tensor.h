#pragma once
#include <optional>
#include <vector>

#include "graph/builder.h"

namespace weir {

// The input [batch, sequence] that launch dims come from (input_ids); nullptr when there is none.
Value* LaunchInput(const Graph& graph);
// A rank-1 int64 value with these elements: a constant, Shape nodes of the launch input, or a
// Concat. nullptr when a dim is unknown or there is no launch input.
Value* ShapeTensor(Builder& builder, const Shape& dims);

// Reshape target from `from` to `to` that does not depend on the launch: 0 where the dim at the
// same place stays, constants, one -1. nullopt when that cannot say it.
std::optional<std::vector<int64_t>> ReshapeTarget(const Shape& from, const Shape& to);
// Expand target likewise: 1 where the dim stays.
std::optional<std::vector<int64_t>> ExpandTarget(const Shape& from, const Shape& to);

// Reshape(x) of shape `to`, or x itself when it has that shape. Needs known shapes.
Value* ReshapeTo(Builder& builder, Value* x, const Shape& to);
// Transpose(x, perm), or x for the identity.
Value* TransposeBy(Builder& builder, Value* x, const std::vector<int64_t>& perm);

}  // namespace weir
