#include "kernels/device/launch.cuh"
#include "kernels/movement/cuda_fill.h"

namespace weir::cuda {
namespace {

template <class E>
__global__ void FillKernel(E* to, const E* value, int64_t count) {
  const E element = value == nullptr ? E(0) : *value;
  for (int64_t k = FirstIndex(); k < count; k += IndexStride()) to[k] = element;
}

template <class E>
__global__ void TriluKernel(TriluShape s, const E* x, const int64_t* diagonal, E* y) {
  const int64_t d = diagonal == nullptr ? 0 : *diagonal;
  for (int64_t k = FirstIndex(); k < s.count; k += IndexStride()) {
    const int64_t right = k % s.columns - k / s.columns % s.rows;
    y[k] = (s.upper ? right >= d : right <= d) ? x[k] : E(0);
  }
}

template <class E>
void Fill(void* to, const void* value, int64_t count, CUstream_st* stream) {
  FillKernel<<<BlocksFor(count), kThreads, 0, stream>>>(static_cast<E*>(to), static_cast<const E*>(value),
                                                        count);
}
template <class E>
void RunTrilu(const TriluShape& s, const void* x, const int64_t* k, void* y, CUstream_st* stream) {
  TriluKernel<<<BlocksFor(s.count), kThreads, 0, stream>>>(s, static_cast<const E*>(x), k,
                                                           static_cast<E*>(y));
}

}  // namespace

void FillFrom(void* to, const void* value, int64_t count, int element_bytes, CUstream_st* stream) {
  if (count == 0) return;
  switch (element_bytes) {
    case 1:
      return Fill<uint8_t>(to, value, count, stream);
    case 2:
      return Fill<uint16_t>(to, value, count, stream);
    case 4:
      return Fill<uint32_t>(to, value, count, stream);
    default:
      return Fill<uint64_t>(to, value, count, stream);
  }
}

void Trilu(const TriluShape& s, int element_bytes, const void* x, const int64_t* k, void* y,
           CUstream_st* stream) {
  if (s.count == 0) return;
  switch (element_bytes) {
    case 1:
      return RunTrilu<uint8_t>(s, x, k, y, stream);
    case 2:
      return RunTrilu<uint16_t>(s, x, k, y, stream);
    case 4:
      return RunTrilu<uint32_t>(s, x, k, y, stream);
    default:
      return RunTrilu<uint64_t>(s, x, k, y, stream);
  }
}

}  // namespace weir::cuda
