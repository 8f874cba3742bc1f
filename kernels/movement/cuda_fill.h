#pragma once
#include <cstdint>

struct CUstream_st;

namespace weir::cuda {

// Copies of the one element at `value` on the device; null: zeros. Elements of 1, 2, 4 or 8 bytes.
void FillFrom(void* to, const void* value, int64_t count, int element_bytes, CUstream_st* stream);

// y[.., i, j] = x where j - i >= k (upper) or <= k, else 0; *k on the device, null: 0.
struct TriluShape {
  int64_t count, rows, columns;
  bool upper;
};
void Trilu(const TriluShape& shape, int element_bytes, const void* x, const int64_t* k, void* y,
           CUstream_st* stream);

}  // namespace weir::cuda
