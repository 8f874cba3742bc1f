#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace weir {

// Counter-based random numbers (Philox4x32-10, Salmon et al. 2011): element i of stream `name` under
// `seed` is one pure function of the three, so bits do not depend on threads, sharding or order.
// Normal values by Box-Muller in double, rounded to float once: the same bits on every machine (normal_block.h).
void FillNormal(std::span<float> out, int64_t first_element, std::string_view name, uint64_t seed,
                double mean, double std);

// A permutation of 0..count-1 (Fisher-Yates over Philox), the same everywhere.
std::vector<int64_t> Permutation(int64_t count, std::string_view name, uint64_t seed);

}  // namespace weir
