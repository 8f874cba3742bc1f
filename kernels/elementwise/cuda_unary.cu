#include "kernels/device/launch.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/elementwise/cuda_functions.cuh"

namespace weir::cuda {
namespace {

// Whole packs, then the few elements behind them; y may be x.
template <class Function, class T>
__global__ void UnaryKernel(const T* x, int64_t count, int64_t packs, float alpha, float beta, T* y) {
  constexpr int kSize = Pack<T>::size;
  for (int64_t k = FirstIndex(); k < packs; k += IndexStride()) {
    Pack<T> pack = LoadPack(x + k * kSize);
#pragma unroll
    for (int i = 0; i < kSize; ++i) pack.at[i] = FromFloat<T>(Function::Of(ToFloat(pack.at[i]), alpha, beta));
    StorePack(y + k * kSize, pack);
  }
  for (int64_t k = packs * kSize + FirstIndex(); k < count; k += IndexStride())
    y[k] = FromFloat<T>(Function::Of(ToFloat(x[k]), alpha, beta));
}

template <class Function>
void Run(UnaryArguments f, DType dtype, const void* x, int64_t count, void* y, CUstream_st* stream) {
  if (count == 0) return;
  WithFloatType(dtype, [&](auto type) {
    using T = decltype(type);
    const int64_t packs = IsAligned(x) && IsAligned(y) ? count / Pack<T>::size : 0;
    UnaryKernel<Function, T><<<BlocksFor(packs > 0 ? packs : count), kThreads, 0, stream>>>(
        static_cast<const T*>(x), count, packs, f.alpha, f.beta, static_cast<T*>(y));
  });
}

template <class I>
__global__ void IntUnaryKernel(Unary function, const I* x, int64_t count, I* y) {
  for (int64_t k = FirstIndex(); k < count; k += IndexStride()) {
    const I v = x[k], negative = static_cast<I>(0 - static_cast<uint64_t>(v));  // wraps
    y[k] = function == Unary::kNeg    ? negative
           : function == Unary::kAbs  ? (v < 0 ? negative : v)
           : function == Unary::kSign ? static_cast<I>((v > 0) - (v < 0))
                                      : (v < 0 ? I{0} : v);
  }
}

}  // namespace

void ApplyUnary(UnaryArguments f, DType dtype, const void* x, int64_t count, void* y, CUstream_st* stream) {
  switch (f.function) {
#define WEIR_CASE(Name) \
  case Unary::k##Name:  \
    return Run<Name##Function>(f, dtype, x, count, y, stream);
    WEIR_CUDA_UNARY(WEIR_CASE)
#undef WEIR_CASE
  }
}

void ApplyIntUnary(Unary function, DType dtype, const void* x, int64_t count, void* y, CUstream_st* stream) {
  if (count == 0) return;
  if (dtype == DType::kInt32) {
    IntUnaryKernel<<<BlocksFor(count), kThreads, 0, stream>>>(function, static_cast<const int32_t*>(x), count,
                                                              static_cast<int32_t*>(y));
  } else {
    IntUnaryKernel<<<BlocksFor(count), kThreads, 0, stream>>>(function, static_cast<const int64_t*>(x), count,
                                                              static_cast<int64_t*>(y));
  }
}

}  // namespace weir::cuda
