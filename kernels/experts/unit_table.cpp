#include "kernels/experts/unit_table.h"

#include <algorithm>

namespace weir {

UnitTable AppendUnits(std::span<const RowBlock> units, int64_t first_expert, int64_t experts,
                      std::vector<int64_t>& words) {
  const UnitTable table{std::ssize(words), std::ssize(words) + std::ssize(units) + 1};
  for (const RowBlock& unit : units) words.push_back(unit.begin);
  words.push_back(units.empty() ? 0 : units.back().end);
  auto unit = units.begin();
  for (int64_t expert = first_expert; expert <= first_expert + experts; ++expert) {
    unit = std::find_if(unit, units.end(),
                        [&](const RowBlock& block) { return block.expert >= expert; });
    words.push_back(unit - units.begin());
  }
  return table;
}

int64_t UnitTableWords(int64_t units, int64_t experts) { return units + experts + 2; }

}  // namespace weir
