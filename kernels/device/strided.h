#pragma once
#include <cstdint>

struct CUstream_st;

namespace weir::cuda {

inline constexpr int kMaxRank = 8;

// A block inside each of two tensors: index tuple `at` is to[sum at*to] and from[sum at*from], in elements.
struct StridedAxes {
  int rank = 0;
  int64_t size[kMaxRank], to[kMaxRank], from[kMaxRank];
};

// to = from over the block; `element_bytes` is 1, 2, 4, 8 or 16. Distinct indices address distinct `to`.
void CopyStrided(const StridedAxes& axes, void* to, const void* from, int element_bytes, CUstream_st* stream);
// to[kept] = sum over `summed` of from, in row-major order, in float64, rounded once. `kept.to` is dense.
// Activations of one type.
void SumStrided(const StridedAxes& kept, const StridedAxes& summed, void* to, const void* from, bool bfloat16,
                CUstream_st* stream);
// Copies of one element of 1, 2, 4 or 8 bytes, given on the host.
void FillElements(void* to, const void* element, int64_t count, int element_bytes, CUstream_st* stream);
// Up to 16 integers from the host into device memory, in order with the queue.
void WriteInts(int64_t* to, const int64_t* values, int count, CUstream_st* stream);

}  // namespace weir::cuda
