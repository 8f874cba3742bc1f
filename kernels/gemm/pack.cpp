#include "kernels/gemm/pack.h"

#include <algorithm>
#include <cstring>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace weir {
namespace {

void TransposeScalar(const float* in, int64_t ld, int64_t rows, int64_t k, float* out,
                     int64_t stride) {
  for (int64_t p = 0; p < k; ++p) {
    for (int64_t i = 0; i < rows; ++i) out[p * stride + i] = in[i * ld + p];
  }
}

// One strip of at most `stride` rows.
void TransposeStrip(const float* in, int64_t ld, int64_t rows, int64_t k, float* out,
                    int64_t stride) {
#if defined(__SSE__)
  if (rows >= 4) {
    int64_t p = 0;
    for (; p + 4 <= k; p += 4) {
      for (int64_t first = 0; first < rows; first += 4) {
        const int64_t i = std::min(first, rows - 4);  // the last group may overlap the one before
        const float* from = in + i * ld + p;
        float* to = out + p * stride + i;
        __m128 r0 = _mm_loadu_ps(from), r1 = _mm_loadu_ps(from + ld);
        __m128 r2 = _mm_loadu_ps(from + 2 * ld), r3 = _mm_loadu_ps(from + 3 * ld);
        _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
        _mm_storeu_ps(to, r0);
        _mm_storeu_ps(to + stride, r1);
        _mm_storeu_ps(to + 2 * stride, r2);
        _mm_storeu_ps(to + 3 * stride, r3);
      }
    }
    return TransposeScalar(in + p, ld, rows, k - p, out + p * stride, stride);
  }
#endif
  TransposeScalar(in, ld, rows, k, out, stride);
}

void Copy(const float* from, int64_t count, float* to) {
  constexpr int64_t kGroup = 4;
  if (count < kGroup) {
    for (int64_t i = 0; i < count; ++i) to[i] = from[i];
    return;
  }
  for (int64_t first = 0; first < count; first += kGroup) {
    const int64_t i = std::min(first, count - kGroup);  // the last group may overlap the one before
    std::memcpy(to + i, from + i, kGroup * sizeof(float));
  }
}

}  // namespace

void PackTransposed(const float* in, int64_t ld, int64_t rows, int64_t k, int64_t unit,
                    int64_t last_stride, float* out) {
  for (int64_t i = 0; i < rows; i += unit) {
    const int64_t count = std::min(unit, rows - i);
    TransposeStrip(in + i * ld, ld, count, k, out + i * k, count == unit ? unit : last_stride);
  }
}

void PackRows(const float* in, int64_t ld, int64_t columns, int64_t k, int64_t unit,
              int64_t last_stride, float* out) {
  // Several strips side by side: long reads, and writes that still fit the ways of the first cache.
  const int64_t group = 4 * unit;
  for (int64_t first = 0; first < columns; first += group) {
    const int64_t end = std::min(columns, first + group);
    for (int64_t p = 0; p < k; ++p) {
      for (int64_t j = first; j < end; j += unit) {
        const int64_t count = std::min(unit, end - j);
        Copy(in + p * ld + j, count, out + j * k + p * (count == unit ? unit : last_stride));
      }
    }
  }
}

}  // namespace weir
