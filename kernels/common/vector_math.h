#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

// Branch-free float32 functions that a compiler turns into vector code. Meant for files named
// *_loops.cpp, which are compiled for that; the bits are the same whatever the instruction set.
// Such a file keeps an inner loop over lanes whole with "#pragma GCC unroll 1": unrolled too early,
// it is left scalar.
namespace weir::vector_math {

// Clones of one function per instruction set, chosen at load time.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__)
#define WEIR_VECTOR_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define WEIR_VECTOR_CLONES
#endif

// Lanes of every interleaved sum: element i goes to partial sum i % kLanes.
inline constexpr int64_t kLanes = 16;

// e^x within 1 ulp; 0 below -104, infinity above 88.73, NaN stays NaN, subnormal results included.
inline float Exp(float x) {
  x = x > 89.0f ? 89.0f : x;
  x = x < -105.0f ? -105.0f : x;
  constexpr float kRound =
      12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const float shifted = std::fma(x, 1.44269504f, kRound);
  const float n = shifted - kRound;
  float r = std::fma(n, -0.693147182f, x);
  r = std::fma(n, 1.90465430e-9f, r);
  float q = std::fma(0.001381459878757596f, r, 0.008368716575205326f);
  q = std::fma(q, r, 0.04166838899254799f);
  q = std::fma(q, r, 0.1666652113199234f);
  q = std::fma(q, r, 0.4999999403953552f);
  const float e = std::fma(r * r, q, r) + 1.0f;
  // 2^n in two factors, so that neither leaves the normal range.
  const int32_t whole = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
  const int32_t half = whole >> 1;
  const float a = std::bit_cast<float>((half + 127) << 23);
  const float b = std::bit_cast<float>((whole - half + 127) << 23);
  return e * a * b;
}

// Within 2 ulp.
inline float Sigmoid(float x) { return 1.0f / (1.0f + Exp(-x)); }

// Within 2 ulp.
inline float Tanh(float x) {
  const float z = x * x;
  float p = std::fma(-0.005704986397176981f, z, 0.02063908614218235f);
  p = std::fma(p, z, -0.05373971536755562f);
  p = std::fma(p, z, 0.13331441581249237f);
  p = std::fma(p, z, -0.3333328068256378f);
  const float near = std::fma(p * z, x, x);
  const float size = std::fabs(x);
  const float far = std::copysign(1.0f - 2.0f / (Exp(2.0f * size) + 1.0f), x);
  return size < 0.625f ? near : far;
}

}  // namespace weir::vector_math
