#pragma once
#include <cstdint>

#include "graph/dtype.h"

struct CUstream_st;

namespace weir::cuda {

inline constexpr int kMaxRotaryPairs = 512;

struct RotaryFrequencies {
  float at[kMaxRotaryPairs];
};
// cos[r,i] = scale * cos(float(first + r) * frequencies[i]), sin likewise, r < length; sin may be null.
void RotaryTable(const RotaryFrequencies& frequencies, double scale, int64_t first, int64_t length, int64_t half, float* cos,
                 float* sin, CUstream_st* stream);

// x, y [tokens, heads, width] activations; cos, sin [length, half]; token t stands at position t % length.
struct RotaryShape {
  int64_t tokens, length, heads, width, half;
  float sign;  // 1: the rotation; -1: its transpose
  bool from_interleaved, to_interleaved;
};
void Rotate(DType dtype, const RotaryShape& shape, const void* x, const float* cos, const float* sin, void* y,
            CUstream_st* stream);

}  // namespace weir::cuda
