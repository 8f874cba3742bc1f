#include "kernels/device/launch.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/elementwise/cuda_functions.cuh"

namespace weir::cuda {
namespace {

// Whole packs, then the few elements behind them; dx may be x or dy.
template <class Slope, class T>
__global__ void SlopeKernel(const T* x, const T* dy, int64_t count, int64_t packs, float alpha, float beta,
                            T* dx) {
  constexpr int kSize = Pack<T>::size;
  for (int64_t k = FirstIndex(); k < packs; k += IndexStride()) {
    const Pack<T> in = LoadPack(x + k * kSize);
    Pack<T> pack = LoadPack(dy + k * kSize);
#pragma unroll
    for (int i = 0; i < kSize; ++i)
      pack.at[i] = FromFloat<T>(ToFloat(pack.at[i]) * Slope::Of(ToFloat(in.at[i]), alpha, beta));
    StorePack(dx + k * kSize, pack);
  }
  for (int64_t k = packs * kSize + FirstIndex(); k < count; k += IndexStride())
    dx[k] = FromFloat<T>(ToFloat(dy[k]) * Slope::Of(ToFloat(x[k]), alpha, beta));
}

template <class Slope>
void Run(UnaryArguments f, DType dtype, const void* x, const void* dy, int64_t count, void* dx,
         CUstream_st* stream) {
  if (count == 0) return;
  WithFloatType(dtype, [&](auto type) {
    using T = decltype(type);
    const int64_t packs = IsAligned(x) && IsAligned(dy) && IsAligned(dx) ? count / Pack<T>::size : 0;
    SlopeKernel<Slope, T><<<BlocksFor(packs > 0 ? packs : count), kThreads, 0, stream>>>(
        static_cast<const T*>(x), static_cast<const T*>(dy), count, packs, f.alpha, f.beta,
        static_cast<T*>(dx));
  });
}

}  // namespace

void ApplySlope(UnaryArguments f, DType dtype, const void* x, const void* dy, int64_t count, void* dx,
                CUstream_st* stream) {
  switch (f.function) {
#define WEIR_CASE(Name) \
  case Unary::k##Name:  \
    return Run<Name##Slope>(f, dtype, x, dy, count, dx, stream);
    WEIR_CUDA_SLOPES(WEIR_CASE)
#undef WEIR_CASE
    default:
      return;  // no other function has a slope
  }
}

}  // namespace weir::cuda
