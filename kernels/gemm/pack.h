#pragma once
#include <cstdint>

namespace weir {

// out[p * stride + i] = in[i * ld + p] for i < rows, p < k (a transpose into a packed strip).
void PackTransposed(const float* in, int64_t ld, int64_t rows, int64_t k, float* out, int64_t stride);
// out[p * stride + i] = in[p * ld + i] for i < rows, p < k.
void PackRows(const float* in, int64_t ld, int64_t rows, int64_t k, float* out, int64_t stride);

}  // namespace weir
