#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/gemm/micro_kernel.h"

namespace weir {
namespace {

template <int kRows>
__attribute__((target("avx2,fma"))) void Run(const TileArgs& t) {
  __m256 sum[kRows][2];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) sum[i][0] = sum[i][1] = _mm256_setzero_ps();
  const float *a = t.a, *b = t.b;
  for (int64_t p = 0; p < t.k; ++p, a += kRows, b += t.ldb) {
    const __m256 b0 = _mm256_loadu_ps(b), b1 = _mm256_loadu_ps(b + 8);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const __m256 x = _mm256_set1_ps(a[i]);
      sum[i][0] = _mm256_fmadd_ps(x, b0, sum[i][0]);
      sum[i][1] = _mm256_fmadd_ps(x, b1, sum[i][1]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      float* c = t.c + i * t.ldc + 8 * half;
      __m256 value = sum[i][half];
      if (t.add) value = _mm256_add_ps(_mm256_loadu_ps(c), value);
      if (t.bias != nullptr) value = _mm256_add_ps(value, _mm256_loadu_ps(t.bias + 8 * half));
      _mm256_storeu_ps(c, value);
    }
  }
}

}  // namespace

// 12 of the 16 registers hold sums.
const MicroKernel kAvx2MicroKernel = {
    "avx2", 6, 16, {Run<1>, Run<2>, Run<3>, Run<4>, Run<5>, Run<6>}};

}  // namespace weir
#endif
