#pragma once
#include <cstdint>

struct CUstream_st;

namespace weir::cuda {

// Index tuples of the ND ops: tuple t of batch t / per_batch addresses `row` elements of the large tensor.
struct Tuples {
  static constexpr int kMaxDepth = 8;
  int64_t batches, per_batch, row, batch_elements;  // batch_elements: of the large tensor
  int depth;
  int64_t sizes[kMaxDepth], strides[kMaxDepth];  // of the axes that a tuple's entries index
};
// y[t, r] = x[tuple t, r]
void GatherTuples(const Tuples& tuples, int element_bytes, const void* x, const int64_t* ids, void* y,
                  CUstream_st* stream);
// y[tuple t, r] = updates[t, r], later tuples over earlier ones.
void ScatterTuples(const Tuples& tuples, int element_bytes, const void* updates, const int64_t* ids, void* y,
                   CUstream_st* stream);
// y[tuple t, r] += updates[t, r], in order of t.
void AddTuples(const Tuples& tuples, const float* updates, const int64_t* ids, float* y, CUstream_st* stream);

}  // namespace weir::cuda
