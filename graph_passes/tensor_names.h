#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace weir {

// How many leading components two names of tensors have in common, 3 ("model.layers.1") for model.layers.1.mlp.gate.weight
// and model.layers.1.block_sparse_moe.gate.weight, where either may have up to two more before them.
int64_t SharedScope(std::string_view a, std::string_view b);

// Whether `part` is one of the name's components after the first `from`.
bool HasComponent(std::string_view name, std::string_view part, int64_t from);

}  // namespace weir
