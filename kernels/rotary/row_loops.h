#pragma once
#include <cstdint>

namespace weir {

struct RotaryRow {
  float sign;           // 1: the rotation; -1: its transpose
  int64_t half, width;  // rotated pairs, channels
  bool from_interleaved, to_interleaved;
};

// Rotates one head of one token; cos and sin have `half` elements.
void RotateRow(const RotaryRow& r, const float* x, const float* cos, const float* sin, float* y);

}  // namespace weir
