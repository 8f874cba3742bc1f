#include "optim/split_loops.h"

#include <algorithm>
#include <bit>

#include "graph/split_master.h"

namespace weir {

void CopyWhole(std::span<const float> masters, float* out) { std::copy(masters.begin(), masters.end(), out); }

void CopyHigh(std::span<const float> masters, uint16_t* __restrict out) {
  for (size_t i = 0; i < masters.size(); ++i) out[i] = SplitMaster(std::bit_cast<uint32_t>(masters[i])).high;
}

void CopyLow(std::span<const float> masters, uint16_t* __restrict out) {
  for (size_t i = 0; i < masters.size(); ++i) out[i] = SplitMaster(std::bit_cast<uint32_t>(masters[i])).low;
}

bool HasTie(std::span<const float> masters) {
  uint32_t ties = 0;
  for (const float master : masters) ties |= SplitMaster(std::bit_cast<uint32_t>(master)).tie;
  return ties != 0;
}

void CopyTies(std::span<const float> masters, float* __restrict out) {
  for (size_t i = 0; i < masters.size(); ++i) out[i] = std::bit_cast<float>(WithTie(0, SplitMaster(std::bit_cast<uint32_t>(masters[i])).tie));
}

}  // namespace weir
