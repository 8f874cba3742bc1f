#pragma once
#include <numeric>
#include <vector>

#include "backend/kernel.h"

namespace weir {

inline constexpr int64_t kSquareBlock = int64_t{1} << 16;

inline int64_t SquareBlocksOf(int64_t elements) { return DivCeil(elements, kSquareBlock); }

// Blocks of every rank's shard of an accumulator: attribute `elements`, or the accumulator alone. With `whole` blocks are those of
// the shards one behind the other, each the rank's where it begins.
std::vector<int64_t> BlocksOfRanks(const Attributes& attributes, int64_t own_elements);

// What a device brings: a copy within its memory, and the sums of squares of a run of elements' blocks.
struct BlockSquarer {
  void (*copy)(KernelContext&, float* to, const float* from, int64_t elements);
  void (*square)(KernelContext&, const float* x, int64_t elements, double* blocks);
};
void LaunchBlockSquares(KernelContext& context, const BlockSquarer& device);
int64_t BlockSquaresWorkspace(const Node& node);

}  // namespace weir
