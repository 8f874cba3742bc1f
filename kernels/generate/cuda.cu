#include "kernels/device/launch.cuh"
#include "kernels/generate/cuda.h"

namespace weir::cuda {
namespace {

template <class T>
__global__ void RangeKernel(const T* start, const T* delta, int64_t count, T* y) {
  for (int64_t k = FirstIndex(); k < count; k += IndexStride()) y[k] = *start + static_cast<T>(k) * *delta;
}

template <class T>
void RunRange(const void* start, const void* delta, int64_t count, void* y, CUstream_st* stream) {
  RangeKernel<<<BlocksFor(count), kThreads, 0, stream>>>(
      static_cast<const T*>(start), static_cast<const T*>(delta), count, static_cast<T*>(y));
}

template <class E, class Id>
__global__ void OneHotKernel(OneHotShape s, const Id* ids, const E* values, E* y) {
  for (int64_t k = FirstIndex(); k < s.outer * s.depth * s.inner; k += IndexStride()) {
    const int64_t inner = k % s.inner, d = k / s.inner % s.depth, outer = k / s.inner / s.depth;
    const int64_t id = ids[outer * s.inner + inner];
    y[k] = values[id == d || id == d - s.depth ? 1 : 0];
  }
}

template <class E>
void RunOneHot(const OneHotShape& s, const void* ids, const void* values, void* y, CUstream_st* stream) {
  const unsigned blocks = BlocksFor(s.outer * s.depth * s.inner);
  if (s.int32_ids) {
    OneHotKernel<<<blocks, kThreads, 0, stream>>>(s, static_cast<const int32_t*>(ids),
                                                  static_cast<const E*>(values), static_cast<E*>(y));
  } else {
    OneHotKernel<<<blocks, kThreads, 0, stream>>>(s, static_cast<const int64_t*>(ids),
                                                  static_cast<const E*>(values), static_cast<E*>(y));
  }
}

}  // namespace

void Range(DType dtype, const void* start, const void* delta, int64_t count, void* y, CUstream_st* stream) {
  if (count == 0) return;
  if (dtype == DType::kFloat32) return RunRange<float>(start, delta, count, y, stream);
  if (dtype == DType::kInt32) return RunRange<int32_t>(start, delta, count, y, stream);
  RunRange<int64_t>(start, delta, count, y, stream);
}

void OneHot(const OneHotShape& s, int element_bytes, const void* ids, const void* values, void* y,
            CUstream_st* stream) {
  if (s.outer * s.depth * s.inner == 0) return;
  switch (element_bytes) {
    case 1:
      return RunOneHot<uint8_t>(s, ids, values, y, stream);
    case 2:
      return RunOneHot<uint16_t>(s, ids, values, y, stream);
    case 4:
      return RunOneHot<uint32_t>(s, ids, values, y, stream);
    default:
      return RunOneHot<uint64_t>(s, ids, values, y, stream);
  }
}

}  // namespace weir::cuda
