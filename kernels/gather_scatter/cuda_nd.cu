#include "kernels/device/ids.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/gather_scatter/cuda_nd.h"

namespace weir::cuda {
namespace {

// The first element that tuple t addresses.
__device__ int64_t PlaceOf(const Tuples& s, const int64_t* ids, int64_t t) {
  int64_t at = t / s.per_batch * s.batch_elements;
  for (int i = 0; i < s.depth; ++i)
    at += CheckedId(ids[t * s.depth + i], s.sizes[i], t * s.depth + i, true) * s.strides[i];
  return at;
}

template <class E>
__global__ void GatherKernel(Tuples s, const E* x, const int64_t* ids, E* y) {
  for (int64_t k = FirstIndex(); k < s.batches * s.per_batch * s.row; k += IndexStride()) {
    const int64_t t = k / s.row;
    y[k] = x[PlaceOf(s, ids, t) + k - t * s.row];
  }
}

// One thread per (batch, element of a row) meets the tuples in order: they may repeat.
template <bool add, class E>
__global__ void ScatterKernel(Tuples s, const E* updates, const int64_t* ids, E* y) {
  for (int64_t k = FirstIndex(); k < s.batches * s.row; k += IndexStride()) {
    const int64_t batch = k / s.row, r = k - batch * s.row;
    for (int64_t t = batch * s.per_batch; t < (batch + 1) * s.per_batch; ++t) {
      E& slot = y[PlaceOf(s, ids, t) + r];
      slot = add ? slot + updates[t * s.row + r] : updates[t * s.row + r];
    }
  }
}

template <class E>
void Gather(const Tuples& s, const void* x, const int64_t* ids, void* y, CUstream_st* stream) {
  const unsigned blocks = BlocksFor(s.batches * s.per_batch * s.row);
  GatherKernel<<<blocks, kThreads, 0, stream>>>(s, static_cast<const E*>(x), ids, static_cast<E*>(y));
}
template <bool add, class E>
void Scatter(const Tuples& s, const void* updates, const int64_t* ids, void* y, CUstream_st* stream) {
  const unsigned blocks = BlocksFor(s.batches * s.row);
  ScatterKernel<add>
      <<<blocks, kThreads, 0, stream>>>(s, static_cast<const E*>(updates), ids, static_cast<E*>(y));
}

bool IsEmpty(const Tuples& s) { return s.batches * s.per_batch * s.row == 0; }

}  // namespace

void GatherTuples(const Tuples& s, int element_bytes, const void* x, const int64_t* ids, void* y,
                  CUstream_st* stream) {
  if (IsEmpty(s)) return;
  switch (element_bytes) {
    case 1:
      return Gather<uint8_t>(s, x, ids, y, stream);
    case 2:
      return Gather<uint16_t>(s, x, ids, y, stream);
    case 4:
      return Gather<uint32_t>(s, x, ids, y, stream);
    default:
      return Gather<uint64_t>(s, x, ids, y, stream);
  }
}

void ScatterTuples(const Tuples& s, int element_bytes, const void* updates, const int64_t* ids, void* y,
                   CUstream_st* stream) {
  if (IsEmpty(s)) return;
  switch (element_bytes) {
    case 1:
      return Scatter<false, uint8_t>(s, updates, ids, y, stream);
    case 2:
      return Scatter<false, uint16_t>(s, updates, ids, y, stream);
    case 4:
      return Scatter<false, uint32_t>(s, updates, ids, y, stream);
    default:
      return Scatter<false, uint64_t>(s, updates, ids, y, stream);
  }
}

void AddTuples(const Tuples& s, const float* updates, const int64_t* ids, float* y, CUstream_st* stream) {
  if (!IsEmpty(s)) Scatter<true, float>(s, updates, ids, y, stream);
}

}  // namespace weir::cuda
