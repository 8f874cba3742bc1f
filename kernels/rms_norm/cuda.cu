#include "kernels/device/column_sums.cuh"
#include "kernels/device/group.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/rms_norm/cuda.h"

namespace weir::cuda {
namespace {

// Packs of a row from which a whole block has work for every thread, and up to which eight threads do (of a
// head).
constexpr int64_t kLongRow = kThreads, kShortRow = 16;

// A row by kGroup threads, `kSize` neighbours at once; it stays in the caches between the two passes.
template <class T, int kSize, int kGroup>
__global__ void RmsNormKernel(const T* x, const float* gamma, int64_t rows, int64_t h, float epsilon, T* y,
                              float* rstd) {
  using Row = GroupOf<kGroup, kThreads>;
  using Packed = Pack<T, kSize>;
  for (int64_t row = Row::FirstRow(); row < rows; row += Row::RowStride()) {
    const T* in = x + row * h;
    float sum = 0;
    for (int64_t j = Row::Lane() * kSize; j < h; j += kGroup * kSize) {
      const Packed pack = *reinterpret_cast<const Packed*>(in + j);
#pragma unroll
      for (int i = 0; i < kSize; ++i) sum = fmaf(ToFloat(pack.at[i]), ToFloat(pack.at[i]), sum);
    }
    sum = Reduce<kGroup>(sum, SumStep{});
    const float r = 1 / sqrtf(sum / static_cast<float>(h) + epsilon);
    for (int64_t j = Row::Lane() * kSize; j < h; j += kGroup * kSize) {
      float scale[kSize];
      LoadFloats(gamma + j, scale);
      Packed pack = *reinterpret_cast<const Packed*>(in + j);
#pragma unroll
      for (int i = 0; i < kSize; ++i) pack.at[i] = FromFloat<T>(scale[i] * (ToFloat(pack.at[i]) * r));
      *reinterpret_cast<Packed*>(y + row * h + j) = pack;
    }
    if (rstd != nullptr && Row::Lane() == 0) rstd[row] = r;
  }
}

template <class T, int kSize, int kGroup>
__global__ void GradientKernel(const T* x, const float* gamma, const float* rstd, const T* dy, int64_t rows,
                               int64_t h, T* dx) {
  using Row = GroupOf<kGroup, kThreads>;
  using Packed = Pack<T, kSize>;
  for (int64_t row = Row::FirstRow(); row < rows; row += Row::RowStride()) {
    float dot = 0;
    for (int64_t j = Row::Lane() * kSize; j < h; j += kGroup * kSize) {
      float scale[kSize];
      LoadFloats(gamma + j, scale);
      const Packed u = *reinterpret_cast<const Packed*>(x + row * h + j);
      const Packed g = *reinterpret_cast<const Packed*>(dy + row * h + j);
#pragma unroll
      for (int i = 0; i < kSize; ++i) dot = fmaf(scale[i] * ToFloat(g.at[i]), ToFloat(u.at[i]), dot);
    }
    dot = Reduce<kGroup>(dot, SumStep{});
    const float r = rstd[row];
    dot *= r * r * r / static_cast<float>(h);
    for (int64_t j = Row::Lane() * kSize; j < h; j += kGroup * kSize) {
      float scale[kSize];
      LoadFloats(gamma + j, scale);
      const Packed u = *reinterpret_cast<const Packed*>(x + row * h + j);
      Packed g = *reinterpret_cast<const Packed*>(dy + row * h + j);
#pragma unroll
      for (int i = 0; i < kSize; ++i)
        g.at[i] = FromFloat<T>(r * scale[i] * ToFloat(g.at[i]) - dot * ToFloat(u.at[i]));
      *reinterpret_cast<Packed*>(dx + row * h + j) = g;
    }
  }
}

template <class T>
struct GammaTerm {
  const T *x, *dy;
  const float* rstd;
  int64_t h;
  template <int kSize>
  __device__ void Add(float (&sums)[kSize], int64_t row, int64_t column) const {
    const auto u = *reinterpret_cast<const Pack<T, kSize>*>(x + row * h + column);
    const auto g = *reinterpret_cast<const Pack<T, kSize>*>(dy + row * h + column);
    const float r = rstd[row];
#pragma unroll
    for (int i = 0; i < kSize; ++i) sums[i] = fmaf(ToFloat(g.at[i]), ToFloat(u.at[i]) * r, sums[i]);
  }
};

bool AllAligned(std::initializer_list<const void*> pointers) {
  bool aligned = true;
  for (const void* pointer : pointers) aligned = aligned && IsAligned(pointer);
  return aligned;
}

// Calls body(width, group) with the pack's size and the threads of a row as types' values.
template <int value>
struct Size {
  static constexpr int of = value;
};
template <class T, class Body>
void WithLayout(int64_t h, bool aligned, const Body& body) {
  constexpr int kPack = Pack<T>::size;
  const bool packs = aligned && h % kPack == 0;
  const int64_t units = packs ? h / kPack : h;
  if (units >= kLongRow) {
    packs ? body(Size<kPack>{}, Size<kThreads>{}) : body(Size<1>{}, Size<kThreads>{});
  } else if (packs) {
    units <= kShortRow ? body(Size<kPack>{}, Size<8>{}) : body(Size<kPack>{}, Size<kWarp>{});
  } else {
    body(Size<1>{}, Size<kWarp>{});
  }
}

}  // namespace

void RmsNorm(DType dtype, const void* x, const float* gamma, int64_t rows, int64_t h, float epsilon, void* y,
             float* rstd, CUstream_st* stream) {
  if (rows == 0) return;
  WithFloatType(dtype, [&](auto type) {
    using T = decltype(type);
    WithLayout<T>(h, AllAligned({x, gamma, y}), [&](auto size, auto group) {
      RmsNormKernel<T, size.of, group.of><<<BlocksFor(rows, kThreads / group.of), kThreads, 0, stream>>>(
          static_cast<const T*>(x), gamma, rows, h, epsilon, static_cast<T*>(y), rstd);
    });
  });
}

void RmsNormGradient(DType dtype, const void* x, const float* gamma, const float* rstd, const void* dy,
                     int64_t rows, int64_t h, void* dx, CUstream_st* stream) {
  if (rows == 0) return;
  WithFloatType(dtype, [&](auto type) {
    using T = decltype(type);
    WithLayout<T>(h, AllAligned({x, gamma, dy, dx}), [&](auto size, auto group) {
      GradientKernel<T, size.of, group.of><<<BlocksFor(rows, kThreads / group.of), kThreads, 0, stream>>>(
          static_cast<const T*>(x), gamma, rstd, static_cast<const T*>(dy), rows, h, static_cast<T*>(dx));
    });
  });
}

int64_t RmsNormPartial(int64_t rows, int64_t h) { return ColumnSumsFloats(rows, h); }

void RmsNormGammaGradient(DType dtype, const void* x, const float* rstd, const void* dy, int64_t rows,
                          int64_t h, bool add, float* partial, float* dgamma, CUstream_st* stream) {
  WithFloatType(dtype, [&](auto type) {
    using T = decltype(type);
    SumColumns(GammaTerm<T>{static_cast<const T*>(x), static_cast<const T*>(dy), rstd, h}, rows, h,
               h % 4 == 0 && AllAligned({x, dy}), add, partial, dgamma, stream);
  });
}

}  // namespace weir::cuda
