#pragma once
#include <cstdint>
#include <string_view>

#include "graph/graph.h"

namespace weir {

// Where a value's bytes are: beside the kernels, or in the host's larger memory across a link.
enum class Memory : uint8_t { kDevice, kHost };
std::string_view MemoryName(Memory memory);  // "device", "host"

// Which slots of an op are host memory; all others are device memory.
bool IsHostInput(const Node& node, size_t i);
bool IsHostOutput(const Node& node, size_t i);

// Follows from the ops around a value: made in a host slot, or, without a producer (optimizer state), read
// by host slots. Throws Internal when the users of one value disagree.
Memory MemoryOf(const Value& value);

}  // namespace weir
