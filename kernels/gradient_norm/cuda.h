#pragma once
#include <cstdint>

struct CUstream_st;

namespace weir::cuda {

inline constexpr int64_t kNormBlock = int64_t{1} << 16;

// blocks[b] = sum of squares of elements [b * 2^16, (b + 1) * 2^16), in float64.
void SquareBlocks(const float* x, int64_t count, double* blocks, CUstream_st* stream);
// *out = the sum of values[0..count), in one order whatever the device; its root.
void SumOf(const double* values, int64_t count, double* out, CUstream_st* stream);
void RootOfSum(const double* values, int64_t count, double* out, CUstream_st* stream);
void ClipCoefficient(const double* norm, double max_norm, float* coefficient, CUstream_st* stream);

}  // namespace weir::cuda
