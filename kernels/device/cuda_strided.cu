#include <cstring>

#include "kernels/device/launch.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/device/strided.h"

namespace weir::cuda {
namespace {

struct alignas(16) Sixteen {
  uint64_t half[2];
};

struct Offsets {
  int64_t to = 0, from = 0;
};
__device__ Offsets OffsetsOf(const StridedAxes& axes, int64_t index) {
  Offsets at;
  for (int i = axes.rank - 1; i > 0; --i) {
    const int64_t rest = index / axes.size[i], digit = index - rest * axes.size[i];
    at.to += digit * axes.to[i];
    at.from += digit * axes.from[i];
    index = rest;
  }
  if (axes.rank > 0) {
    at.to += index * axes.to[0];
    at.from += index * axes.from[0];
  }
  return at;
}

template <class E>
__global__ void CopyKernel(StridedAxes axes, int64_t count, E* to, const E* from) {
  for (int64_t k = FirstIndex(); k < count; k += IndexStride()) {
    const Offsets at = OffsetsOf(axes, k);
    to[at.to] = from[at.from];
  }
}

template <class T>
__global__ void SumKernel(StridedAxes kept, StridedAxes summed, int64_t count, int64_t terms, T* to,
                          const T* from) {
  for (int64_t k = FirstIndex(); k < count; k += IndexStride()) {
    const Offsets at = OffsetsOf(kept, k);
    double sum = 0;
    for (int64_t t = 0; t < terms; ++t) sum += ToFloat(from[at.from + OffsetsOf(summed, t).from]);
    to[at.to] = FromFloat<T>(static_cast<float>(sum));
  }
}

template <class E>
__global__ void FillKernel(E* to, E value, int64_t count) {
  for (int64_t k = FirstIndex(); k < count; k += IndexStride()) to[k] = value;
}

struct Sixteen64 {
  int64_t at[16];
};
__global__ void WriteKernel(int64_t* to, Sixteen64 values, int count) {
  if (static_cast<int>(threadIdx.x) < count) to[threadIdx.x] = values.at[threadIdx.x];
}

int64_t CountOf(const StridedAxes& axes) {
  int64_t count = 1;
  for (int i = 0; i < axes.rank; ++i) count *= axes.size[i];
  return count;
}

template <class E>
void Copy(const StridedAxes& axes, void* to, const void* from, CUstream_st* stream) {
  const int64_t count = CountOf(axes);
  if (count == 0) return;
  CopyKernel<<<BlocksFor(count), kThreads, 0, stream>>>(axes, count, static_cast<E*>(to),
                                                        static_cast<const E*>(from));
}

template <class E>
void Fill(void* to, const void* element, int64_t count, CUstream_st* stream) {
  E value;
  std::memcpy(&value, element, sizeof(E));
  if (count > 0)
    FillKernel<<<BlocksFor(count), kThreads, 0, stream>>>(static_cast<E*>(to), value, count);
}

}  // namespace

void CopyStrided(const StridedAxes& axes, void* to, const void* from, int element_bytes,
                 CUstream_st* stream) {
  switch (element_bytes) {
    case 1:
      return Copy<uint8_t>(axes, to, from, stream);
    case 2:
      return Copy<uint16_t>(axes, to, from, stream);
    case 4:
      return Copy<uint32_t>(axes, to, from, stream);
    case 8:
      return Copy<uint64_t>(axes, to, from, stream);
    default:
      return Copy<Sixteen>(axes, to, from, stream);
  }
}

void SumStrided(const StridedAxes& kept, const StridedAxes& summed, void* to, const void* from,
                bool bfloat16, CUstream_st* stream) {
  const int64_t count = CountOf(kept), terms = CountOf(summed);
  if (count == 0) return;
  WithFloatType(bfloat16 ? DType::kBFloat16 : DType::kFloat32, [&](auto type) {
    using T = decltype(type);
    SumKernel<<<BlocksFor(count), kThreads, 0, stream>>>(
        kept, summed, count, terms, static_cast<T*>(to), static_cast<const T*>(from));
  });
}

void FillElements(void* to, const void* element, int64_t count, int element_bytes,
                  CUstream_st* stream) {
  switch (element_bytes) {
    case 1:
      return Fill<uint8_t>(to, element, count, stream);
    case 2:
      return Fill<uint16_t>(to, element, count, stream);
    case 4:
      return Fill<uint32_t>(to, element, count, stream);
    default:
      return Fill<uint64_t>(to, element, count, stream);
  }
}

void WriteInts(int64_t* to, const int64_t* values, int count, CUstream_st* stream) {
  Sixteen64 copy{};
  for (int i = 0; i < count; ++i) copy.at[i] = values[i];
  if (count > 0) WriteKernel<<<1, 32, 0, stream>>>(to, copy, count);
}

}  // namespace weir::cuda
