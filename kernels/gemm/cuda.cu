#include "kernels/device/launch.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/gemm/cuda.h"

namespace weir::cuda {
namespace {

template <class T>
__global__ void AddBiasKernel(T* y, int64_t count, int64_t columns, int64_t stride,
                              const float* bias) {
  for (int64_t k = FirstIndex(); k < count; k += IndexStride()) {
    T& value = y[k / columns * stride + k % columns];
    value = FromFloat<T>(ToFloat(value) + bias[k % columns]);
  }
}

__global__ void RoundToBFloat16Kernel(const float* from, BFloat16* to, int64_t count) {
  for (int64_t k = FirstIndex(); k < count; k += IndexStride())
    to[k] = FromFloat<BFloat16>(from[k]);
}

__device__ float LoadAs(const void* x, bool bf16, int64_t at) {
  return bf16 ? ToFloat(static_cast<const BFloat16*>(x)[at]) : static_cast<const float*>(x)[at];
}

template <class T>
__global__ void ScaleGemmKernel(T* y, GemmScale s) {
  for (int64_t k = FirstIndex(); k < s.rows * s.columns; k += IndexStride()) {
    float value = ToFloat(y[k]) * s.alpha;
    if (s.c != nullptr) {
      value += s.beta * LoadAs(s.c, s.c_dtype == DType::kBFloat16,
                               k / s.columns * s.c_row + k % s.columns * s.c_column);
    }
    y[k] = FromFloat<T>(value);
  }
}

template <class T>
__global__ void GemmBiasGradientKernel(GemmScale s, const void* dy, bool bf16, T* out,
                                       int64_t count) {
  for (int64_t at = FirstIndex(); at < count; at += IndexStride()) {
    const int64_t i0 = s.c_row > 0 ? at / s.c_row : 0,
                  j0 = s.c_column > 0 ? (s.c_row > 0 ? at % s.c_row : at) : 0;
    const int64_t i1 = s.c_row > 0 ? i0 + 1 : s.rows, j1 = s.c_column > 0 ? j0 + 1 : s.columns;
    double sum = 0;
    for (int64_t i = i0; i < i1; ++i) {
      for (int64_t j = j0; j < j1; ++j)
        sum += static_cast<double>(LoadAs(dy, bf16, i * s.columns + j));
    }
    out[at] = FromFloat<T>(static_cast<float>(sum * static_cast<double>(s.beta)));
  }
}

}  // namespace

void AddBias(const GemmCall& y, CUstream_st* stream) {
  const int64_t count = y.m * y.n;
  if (count == 0) return;
  WithFloatType(y.c_dtype, [&](auto type) {
    AddBiasKernel<<<BlocksFor(count), kThreads, 0, stream>>>(static_cast<decltype(type)*>(y.c),
                                                             count, y.n, y.c_stride, y.bias);
  });
}

void RoundToBFloat16(const float* from, void* to, int64_t count, CUstream_st* stream) {
  if (count > 0)
    RoundToBFloat16Kernel<<<BlocksFor(count), kThreads, 0, stream>>>(
        from, static_cast<BFloat16*>(to), count);
}

void ScaleGemm(void* y, DType dtype, const GemmScale& scale, CUstream_st* stream) {
  const int64_t count = scale.rows * scale.columns;
  if (count == 0) return;
  WithFloatType(dtype, [&](auto type) {
    ScaleGemmKernel<<<BlocksFor(count), kThreads, 0, stream>>>(static_cast<decltype(type)*>(y),
                                                               scale);
  });
}

void GemmBiasGradient(const GemmScale& scale, const void* dy, DType dtype, void* out,
                      DType out_dtype, int64_t count, CUstream_st* stream) {
  if (count == 0) return;
  WithFloatType(out_dtype, [&](auto type) {
    GemmBiasGradientKernel<<<BlocksFor(count), kThreads, 0, stream>>>(
        scale, dy, dtype == DType::kBFloat16, static_cast<decltype(type)*>(out), count);
  });
}

}  // namespace weir::cuda
