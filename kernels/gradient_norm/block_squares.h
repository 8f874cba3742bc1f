#pragma once
#include <numeric>
#include <vector>

#include "graph/graph.h"

namespace weir {

inline constexpr int64_t kSquareBlock = int64_t{1} << 16;

inline int64_t SquareBlocksOf(int64_t elements) { return DivCeil(elements, kSquareBlock); }

// Blocks of every rank's shard of an accumulator: attribute `elements`, or the accumulator alone.
inline std::vector<int64_t> BlocksOfRanks(const Attributes& attributes, int64_t own_elements) {
  std::vector<int64_t> blocks = attributes.Ints("elements");
  if (blocks.empty()) blocks = {own_elements};
  for (int64_t& count : blocks) count = SquareBlocksOf(count);
  return blocks;
}

}  // namespace weir
