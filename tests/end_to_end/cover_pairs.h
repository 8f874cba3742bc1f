#pragma once
#include <cstddef>
#include <functional>
#include <vector>

namespace weir {

// The index of a value for each factor.
using CoverRow = std::vector<size_t>;
// Whether two factors may have these values together.
using PairAllowed = std::function<bool(size_t factor, size_t value, size_t other, size_t other_value)>;

// Rows in which every allowed pair of values of two factors appears, by a greedy search: the same ones on every run. A pair that
// no row can hold is an error: `allowed` must then forbid it.
std::vector<CoverRow> CoverPairs(const std::vector<size_t>& sizes, const PairAllowed& allowed);

// Allowed pairs that no row has.
size_t UncoveredPairs(const std::vector<CoverRow>& rows, const std::vector<size_t>& sizes, const PairAllowed& allowed);

}  // namespace weir
