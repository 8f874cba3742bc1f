// Activations are float or bfloat16, arithmetic is float32. Packs move 16 bytes at a time.
#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "graph/dtype.h"

namespace weir::cuda {

using BFloat16 = __nv_bfloat16;

__device__ inline float ToFloat(float x) { return x; }
__device__ inline float ToFloat(BFloat16 x) { return __bfloat162float(x); }
template <class T>
__device__ inline T FromFloat(float x);
template <>
__device__ inline float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ inline BFloat16 FromFloat<BFloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// `kSize` neighbours, loaded and stored at once; addresses must be multiples of the pack's size.
template <class T, int kSize = 16 / static_cast<int>(sizeof(T))>
struct alignas(kSize * sizeof(T)) Pack {
  static constexpr int size = kSize;
  T at[kSize];
};
template <class T>
__device__ inline Pack<T> LoadPack(const T* from) {
  return *reinterpret_cast<const Pack<T>*>(from);
}
template <class T>
__device__ inline void StorePack(T* to, const Pack<T>& pack) {
  *reinterpret_cast<Pack<T>*>(to) = pack;
}

// `kSize` float32 neighbours beside a pack: 16 bytes at a time when there are as many.
template <int kSize>
__device__ inline void LoadFloats(const float* from, float (&to)[kSize]) {
  constexpr int kStep = kSize % 4 == 0 ? 4 : 1;
#pragma unroll
  for (int i = 0; i < kSize; i += kStep) {
    const auto pack = *reinterpret_cast<const Pack<float, kStep>*>(from + i);
#pragma unroll
    for (int j = 0; j < kStep; ++j) to[i + j] = pack.at[j];
  }
}

inline bool IsAligned(const void* address, int64_t bytes = 16) {
  return reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(bytes) == 0;
}

// Calls body(T{}) with the activation type: float or BFloat16.
template <class Body>
void WithFloatType(DType dtype, const Body& body) {
  dtype == DType::kBFloat16 ? body(BFloat16{}) : body(float{});
}

}  // namespace weir::cuda
