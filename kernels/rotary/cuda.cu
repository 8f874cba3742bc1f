#include "kernels/device/launch.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/rotary/cuda.h"

namespace weir::cuda {
namespace {

__global__ void TableKernel(RotaryFrequencies frequencies, double scale, int64_t first, int64_t length,
                            int64_t half, float* cos_table, float* sin_table) {
  for (int64_t k = FirstIndex(); k < length * half; k += IndexStride()) {
    const int64_t p = k / half;
    const double angle = static_cast<float>(first + p) * frequencies.at[k - p * half];
    double s, c;
    sincos(angle, &s, &c);
    cos_table[k] = static_cast<float>(scale * c);
    if (sin_table != nullptr) sin_table[k] = static_cast<float>(scale * s);
  }
}

// One rotated pair or copied channel per index.
template <class T>
__global__ void RotateKernel(RotaryShape r, const T* x, const float* cos, const float* sin, T* y) {
  const int64_t units = r.width - r.half, count = r.tokens * r.heads * units;
  for (int64_t k = FirstIndex(); k < count; k += IndexStride()) {
    const int64_t row = k / units, i = k - row * units, base = row * r.width;
    if (i >= r.half) {
      y[base + i + r.half] = x[base + i + r.half];
      continue;
    }
    const int64_t table = row / r.heads % r.length * r.half + i;
    const int64_t first = r.from_interleaved ? 2 * i : i,
                  second = r.from_interleaved ? 2 * i + 1 : i + r.half;
    const float a = ToFloat(x[base + first]), b = ToFloat(x[base + second]);
    const float c = cos[table], s = r.sign * sin[table];
    y[base + (r.to_interleaved ? 2 * i : i)] = FromFloat<T>(a * c - b * s);
    y[base + (r.to_interleaved ? 2 * i + 1 : i + r.half)] = FromFloat<T>(b * c + a * s);
  }
}

// Half layout on both sides, 16 bytes of pairs or copied channels per index.
template <class T>
__global__ void RotateHalvesKernel(RotaryShape r, const T* x, const float* cos, const float* sin, T* y) {
  constexpr int kSize = Pack<T>::size;
  const int64_t units = (r.width - r.half) / kSize, count = r.tokens * r.heads * units;
  for (int64_t k = FirstIndex(); k < count; k += IndexStride()) {
    const int64_t row = k / units, i = (k - row * units) * kSize;
    const T* from = x + row * r.width + i;
    T* to = y + row * r.width + i;
    if (i >= r.half) {
      StorePack(to + r.half, LoadPack(from + r.half));
      continue;
    }
    const int64_t table = row / r.heads % r.length * r.half + i;
    Pack<T> a = LoadPack(from), b = LoadPack(from + r.half);
    float c[kSize], s[kSize];
    LoadFloats(cos + table, c);
    LoadFloats(sin + table, s);
#pragma unroll
    for (int e = 0; e < kSize; ++e) {
      const float u = ToFloat(a.at[e]), v = ToFloat(b.at[e]), w = r.sign * s[e];
      a.at[e] = FromFloat<T>(u * c[e] - v * w);
      b.at[e] = FromFloat<T>(v * c[e] + u * w);
    }
    StorePack(to, a);
    StorePack(to + r.half, b);
  }
}

}  // namespace

void RotaryTable(const RotaryFrequencies& frequencies, double scale, int64_t first, int64_t length, int64_t half,
                 float* cos, float* sin, CUstream_st* stream) {
  const int64_t count = length * half;
  if (count > 0)
    TableKernel<<<BlocksFor(count), kThreads, 0, stream>>>(frequencies, scale, first, length, half, cos, sin);
}

void Rotate(DType dtype, const RotaryShape& shape, const void* x, const float* cos, const float* sin, void* y,
            CUstream_st* stream) {
  const int64_t count = shape.tokens * shape.heads * (shape.width - shape.half);
  if (count == 0) return;
  const bool halves = !shape.from_interleaved && !shape.to_interleaved && IsAligned(x) && IsAligned(y) &&
                      IsAligned(cos) && IsAligned(sin);
  WithFloatType(dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kSize = Pack<T>::size;
    const bool packs = halves && shape.half % kSize == 0 && shape.width % kSize == 0;
    const auto kernel = packs ? RotateHalvesKernel<T> : RotateKernel<T>;
    kernel<<<BlocksFor(packs ? count / kSize : count), kThreads, 0, stream>>>(shape, static_cast<const T*>(x),
                                                                              cos, sin, static_cast<T*>(y));
  });
}

}  // namespace weir::cuda
