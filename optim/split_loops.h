#pragma once
#include <cstdint>
#include <span>

namespace weir {

// Of each master: itself, the bfloat16 that computes, the low half (graph/split_master.h).
void CopyWhole(std::span<const float> masters, float* out);
void CopyHigh(std::span<const float> masters, uint16_t* out);
void CopyLow(std::span<const float> masters, uint16_t* out);
// Whether any is a tie that rounded up; as v = 0 keeps it, 0 or -0.
bool HasTie(std::span<const float> masters);
void CopyTies(std::span<const float> masters, float* out);

}  // namespace weir
