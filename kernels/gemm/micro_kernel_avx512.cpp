#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/gemm/micro_kernel.h"

namespace weir {
namespace {

template <int kRows>
__attribute__((target("avx512f"))) void Run(const TileArgs& t) {
  __m512 sum[kRows][2];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) sum[i][0] = sum[i][1] = _mm512_setzero_ps();
  const float *a = t.a, *b = t.b;
  for (int64_t p = 0; p < t.k; ++p, a += kRows, b += t.ldb) {
    const __m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps(b + 16);
    __builtin_prefetch(b + 12 * t.ldb);  // rows of an unpacked B are pages apart
    __builtin_prefetch(b + 12 * t.ldb + 16);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const __m512 x = _mm512_set1_ps(a[i]);
      sum[i][0] = _mm512_fmadd_ps(x, b0, sum[i][0]);
      sum[i][1] = _mm512_fmadd_ps(x, b1, sum[i][1]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      float* c = t.c + i * t.ldc + 16 * half;
      __m512 value = sum[i][half];
      if (t.add) value = _mm512_add_ps(_mm512_loadu_ps(c), value);
      if (t.bias != nullptr) value = _mm512_add_ps(value, _mm512_loadu_ps(t.bias + 16 * half));
      _mm512_storeu_ps(c, value);
    }
  }
}

}  // namespace

// 24 of the 32 registers hold sums: enough independent chains to hide the latency of two units.
const MicroKernel kAvx512MicroKernel = {"avx512",
                                        12,
                                        32,
                                        {Run<1>, Run<2>, Run<3>, Run<4>, Run<5>, Run<6>, Run<7>,
                                         Run<8>, Run<9>, Run<10>, Run<11>, Run<12>}};

}  // namespace weir
#endif
