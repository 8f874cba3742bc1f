#include "kernels/device/group.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/softmax/cuda.h"

namespace weir::cuda {
namespace {

constexpr int64_t kLongRow = 2048;  // a whole block from here on

__device__ inline int64_t FirstOf(const SoftmaxShape& s, int64_t row) {
  return row / s.inner * s.size * s.inner + row % s.inner;
}

// Three passes; a row stays in the caches.
template <class T, int kGroup>
__global__ void SoftmaxKernel(SoftmaxShape s, const T* x, T* y) {
  using Row = GroupOf<kGroup, kThreads>;
  for (int64_t row = Row::FirstRow(); row < s.rows; row += Row::RowStride()) {
    const int64_t base = FirstOf(s, row);
    float top = -INFINITY, sum = 0;
    for (int64_t j = Row::Lane(); j < s.size; j += kGroup) top = fmaxf(top, ToFloat(x[base + j * s.inner]));
    top = Reduce<kGroup>(top, MaxStep{});
    for (int64_t j = Row::Lane(); j < s.size; j += kGroup) sum += expf(ToFloat(x[base + j * s.inner]) - top);
    sum = Reduce<kGroup>(sum, SumStep{});
    const float factor = s.log ? logf(sum) : 1 / sum;
    for (int64_t j = Row::Lane(); j < s.size; j += kGroup) {
      const float shifted = ToFloat(x[base + j * s.inner]) - top;
      y[base + j * s.inner] = FromFloat<T>(s.log ? shifted - factor : expf(shifted) * factor);
    }
  }
}

// dx = y * (dy - sum(dy * y)); log form: dx = dy - e^y * sum(dy).
template <class T, int kGroup>
__global__ void GradientKernel(SoftmaxShape s, const T* y, const T* dy, T* dx) {
  using Row = GroupOf<kGroup, kThreads>;
  for (int64_t row = Row::FirstRow(); row < s.rows; row += Row::RowStride()) {
    const int64_t base = FirstOf(s, row);
    float sum = 0;
    for (int64_t j = Row::Lane(); j < s.size; j += kGroup) {
      const int64_t at = base + j * s.inner;
      sum = fmaf(ToFloat(dy[at]), s.log ? 1.0f : ToFloat(y[at]), sum);
    }
    sum = Reduce<kGroup>(sum, SumStep{});
    for (int64_t j = Row::Lane(); j < s.size; j += kGroup) {
      const int64_t at = base + j * s.inner;
      const float value = ToFloat(y[at]), slope = ToFloat(dy[at]);
      dx[at] = FromFloat<T>(s.log ? slope - expf(value) * sum : value * (slope - sum));
    }
  }
}

bool IsLong(const SoftmaxShape& s) { return s.size >= kLongRow; }
unsigned Blocks(const SoftmaxShape& s) { return BlocksFor(s.rows, IsLong(s) ? 1 : kThreads / kWarp); }

}  // namespace

void Softmax(DType dtype, const SoftmaxShape& s, const void* x, void* y, CUstream_st* stream) {
  if (s.rows * s.size == 0) return;
  WithFloatType(dtype, [&](auto type) {
    using T = decltype(type);
    const auto kernel = IsLong(s) ? SoftmaxKernel<T, kThreads> : SoftmaxKernel<T, kWarp>;
    kernel<<<Blocks(s), kThreads, 0, stream>>>(s, static_cast<const T*>(x), static_cast<T*>(y));
  });
}

void SoftmaxGradient(DType dtype, const SoftmaxShape& s, const void* y, const void* dy, void* dx,
                     CUstream_st* stream) {
  if (s.rows * s.size == 0) return;
  WithFloatType(dtype, [&](auto type) {
    using T = decltype(type);
    const auto kernel = IsLong(s) ? GradientKernel<T, kThreads> : GradientKernel<T, kWarp>;
    kernel<<<Blocks(s), kThreads, 0, stream>>>(s, static_cast<const T*>(y), static_cast<const T*>(dy),
                                               static_cast<T*>(dx));
  });
}

}  // namespace weir::cuda
