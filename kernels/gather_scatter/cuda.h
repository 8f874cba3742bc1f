#pragma once
#include <cstdint>

struct CUstream_st;

namespace weir::cuda {

// Ids of GatherElements and its like as [outer, size, inner] around the axis: every (outer, inner) column
// addresses its own elements of the large tensor.
struct ElementPlaces {
  static constexpr int kMaxRank = 8;
  int rank = 0, axis = 0;
  int64_t dims[kMaxRank], strides[kMaxRank];  // of ids; of the large tensor
  int64_t large;                              // size of the large tensor's axis
  bool int32_ids;
};
// y[k] = x[place(k)]
void GatherElements(const ElementPlaces& places, int element_bytes, const void* x, const void* ids, void* y,
                    CUstream_st* stream);
// y[place(k)] = updates[k], each column in order of k.
void ScatterElements(const ElementPlaces& places, int element_bytes, const void* updates, const void* ids,
                     void* y, CUstream_st* stream);
// y[place(k)] += updates[k] in float32, each column in order of k.
void AddElements(const ElementPlaces& places, bool bfloat16, const void* updates, const void* ids, float* y,
                 CUstream_st* stream);

// dx[o, ids[k], i] += dy[o, k, i] for k in order: dx [outer, size, inner], dy [outer, count, inner].
struct RowScatter {
  int64_t outer, count, size, inner;
  bool int32_ids;
};
void AddRows(const RowScatter& shape, const float* dy, const void* ids, float* dx, CUstream_st* stream);

}  // namespace weir::cuda
