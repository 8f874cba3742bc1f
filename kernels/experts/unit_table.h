#pragma once
#include <span>
#include <vector>

#include "kernels/experts/routing.h"

namespace weir {

// Where cuda::UnitRun's arrays lie in a launch's table of integers.
struct UnitTable {
  int64_t row = 0, first = 0;
};
// Puts all units of a chunk, contiguous rows by expert, behind `words`: row, then first for
// `experts` experts from `first_expert` on. No `first` names the units of other experts.
UnitTable AppendUnits(std::span<const RowBlock> units, int64_t first_expert, int64_t experts,
                      std::vector<int64_t>& words);
int64_t UnitTableWords(int64_t units, int64_t experts);

}  // namespace weir
