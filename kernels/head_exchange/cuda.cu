#include "kernels/device/launch.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/head_exchange/cuda.h"

namespace weir::cuda {
namespace {

// `kSize` neighbours of a row per index.
template <class T, int kSize>
__global__ void MoveKernel(HeadRowsShape r, const T* from, T* to) {
  const int64_t units = r.width / kSize, count = r.rows * units;
  for (int64_t k = FirstIndex(); k < count; k += IndexStride()) {
    const int64_t row = k / units, at = (k - row * units) * kSize;
    const T* source = from + row * r.from_stride + at;
    auto pack = *reinterpret_cast<const Pack<T, kSize>*>(source);
    if (r.replicas > 1) {
      float sum[kSize];
#pragma unroll
      for (int i = 0; i < kSize; ++i) sum[i] = ToFloat(pack.at[i]);
      for (int64_t replica = 1; replica < r.replicas; ++replica) {
        const auto more = *reinterpret_cast<const Pack<T, kSize>*>(source + replica * r.replica_stride);
#pragma unroll
        for (int i = 0; i < kSize; ++i) sum[i] += ToFloat(more.at[i]);
      }
#pragma unroll
      for (int i = 0; i < kSize; ++i) pack.at[i] = FromFloat<T>(sum[i]);
    }
    *reinterpret_cast<Pack<T, kSize>*>(to + row * r.to_stride + at) = pack;
  }
}

}  // namespace

void MoveHeadRows(DType dtype, const HeadRowsShape& shape, const void* from, void* to, CUstream_st* stream) {
  const int64_t count = shape.rows * shape.width;
  if (count == 0) return;
  WithFloatType(dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kSize = Pack<T>::size;
    const bool packs = IsAligned(from) && IsAligned(to) && shape.width % kSize == 0 && shape.to_stride % kSize == 0 &&
                       shape.from_stride % kSize == 0 && shape.replica_stride % kSize == 0;
    const auto kernel = packs ? MoveKernel<T, kSize> : MoveKernel<T, 1>;
    kernel<<<BlocksFor(packs ? count / kSize : count), kThreads, 0, stream>>>(shape, static_cast<const T*>(from),
                                                                              static_cast<T*>(to));
  });
}

}  // namespace weir::cuda
