#include "kernels/device/column_sums.cuh"
#include "kernels/device/group.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/rms_norm/cuda.h"

namespace weir::cuda {
namespace {

// One row by kThreads threads; rows stay in the caches between the two passes. `kSize` neighbours at once.
template <class T, int kSize>
__global__ void RmsNormKernel(const T* x, const float* gamma, int64_t rows, int64_t h, float epsilon, T* y, float* rstd) {
  using Row = GroupOf<kThreads, kThreads>;
  for (int64_t row = Row::FirstRow(); row < rows; row += Row::RowStride()) {
    const T* in = x + row * h;
    float sum = 0;
    for (int64_t j = Row::Lane() * kSize; j < h; j += kThreads * kSize) {
      const auto pack = *reinterpret_cast<const Pack<T, kSize>*>(in + j);
#pragma unroll
      for (int i = 0; i < kSize; ++i) sum = fmaf(ToFloat(pack.at[i]), ToFloat(pack.at[i]), sum);
    }
    sum = Reduce<kThreads>(sum, SumStep{});
    const float r = 1 / sqrtf(sum / static_cast<float>(h) + epsilon);
    for (int64_t j = Row::Lane() * kSize; j < h; j += kThreads * kSize) {
      const auto scale = *reinterpret_cast<const Pack<float, kSize>*>(gamma + j);
      auto pack = *reinterpret_cast<const Pack<T, kSize>*>(in + j);
#pragma unroll
      for (int i = 0; i < kSize; ++i) pack.at[i] = FromFloat<T>(scale.at[i] * (ToFloat(pack.at[i]) * r));
      *reinterpret_cast<Pack<T, kSize>*>(y + row * h + j) = pack;
    }
    if (rstd != nullptr && Row::Lane() == 0) rstd[row] = r;
  }
}

template <class T, int kSize>
__global__ void GradientKernel(const T* x, const float* gamma, const float* rstd, const T* dy, int64_t rows, int64_t h, T* dx) {
  using Row = GroupOf<kThreads, kThreads>;
  for (int64_t row = Row::FirstRow(); row < rows; row += Row::RowStride()) {
    float dot = 0;
    for (int64_t j = Row::Lane() * kSize; j < h; j += kThreads * kSize) {
      const auto scale = *reinterpret_cast<const Pack<float, kSize>*>(gamma + j);
      const auto u = *reinterpret_cast<const Pack<T, kSize>*>(x + row * h + j);
      const auto g = *reinterpret_cast<const Pack<T, kSize>*>(dy + row * h + j);
#pragma unroll
      for (int i = 0; i < kSize; ++i) dot = fmaf(scale.at[i] * ToFloat(g.at[i]), ToFloat(u.at[i]), dot);
    }
    dot = Reduce<kThreads>(dot, SumStep{});
    const float r = rstd[row];
    dot *= r * r * r / static_cast<float>(h);
    for (int64_t j = Row::Lane() * kSize; j < h; j += kThreads * kSize) {
      const auto scale = *reinterpret_cast<const Pack<float, kSize>*>(gamma + j);
      const auto u = *reinterpret_cast<const Pack<T, kSize>*>(x + row * h + j);
      auto g = *reinterpret_cast<const Pack<T, kSize>*>(dy + row * h + j);
#pragma unroll
      for (int i = 0; i < kSize; ++i)
        g.at[i] = FromFloat<T>(r * scale.at[i] * ToFloat(g.at[i]) - dot * ToFloat(u.at[i]));
      *reinterpret_cast<Pack<T, kSize>*>(dx + row * h + j) = g;
    }
  }
}

template <class T>
struct GammaTerm {
  const T *x, *dy;
  const float* rstd;
  int64_t h;
  __device__ float Add(float sum, int64_t row, int64_t column) const {
    return fmaf(ToFloat(dy[row * h + column]), ToFloat(x[row * h + column]) * rstd[row], sum);
  }
};

// Packs of four: 16 bytes of gamma, and of float32 rows.
bool Packs(int64_t h, std::initializer_list<const void*> pointers) {
  bool packs = h % 4 == 0;
  for (const void* pointer : pointers) packs = packs && IsAligned(pointer);
  return packs;
}

}  // namespace

void RmsNorm(DType dtype, const void* x, const float* gamma, int64_t rows, int64_t h, float epsilon, void* y, float* rstd,
             CUstream_st* stream) {
  if (rows == 0) return;
  WithFloatType(dtype, [&](auto type) {
    using T = decltype(type);
    const auto kernel = Packs(h, {x, gamma, y}) ? RmsNormKernel<T, 4> : RmsNormKernel<T, 1>;
    kernel<<<BlocksFor(rows, 1), kThreads, 0, stream>>>(static_cast<const T*>(x), gamma, rows, h, epsilon,
                                                        static_cast<T*>(y), rstd);
  });
}

void RmsNormGradient(DType dtype, const void* x, const float* gamma, const float* rstd, const void* dy, int64_t rows,
                     int64_t h, void* dx, CUstream_st* stream) {
  if (rows == 0) return;
  WithFloatType(dtype, [&](auto type) {
    using T = decltype(type);
    const auto kernel = Packs(h, {x, gamma, dy, dx}) ? GradientKernel<T, 4> : GradientKernel<T, 1>;
    kernel<<<BlocksFor(rows, 1), kThreads, 0, stream>>>(static_cast<const T*>(x), gamma, rstd, static_cast<const T*>(dy),
                                                        rows, h, static_cast<T*>(dx));
  });
}

int64_t RmsNormPartial(int64_t rows, int64_t h) { return ColumnSumsFloats(rows, h); }

void RmsNormGammaGradient(DType dtype, const void* x, const float* rstd, const void* dy, int64_t rows, int64_t h, bool add,
                          float* partial, float* dgamma, CUstream_st* stream) {
  WithFloatType(dtype, [&](auto type) {
    using T = decltype(type);
    SumColumns(GammaTerm<T>{static_cast<const T*>(x), static_cast<const T*>(dy), rstd, h}, rows, h, add, partial, dgamma,
               stream);
  });
}

}  // namespace weir::cuda
