#include "kernels/gemm/sgemm.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/parallel.h"

namespace weir {

void Sgemm(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb,
           float* c, int64_t ldc, const SgemmOptions& options) {
  const int64_t a_row = options.transpose_a ? 1 : lda, a_column = options.transpose_a ? lda : 1;
  const int64_t b_row = options.transpose_b ? 1 : ldb, b_column = options.transpose_b ? ldb : 1;
  ParallelFor(m, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        float total = options.accumulate ? c[i * ldc + j] : 0;
        for (int64_t first = 0; first < k; first += kSgemmBlockK) {
          float sum = 0;
          for (int64_t p = first; p < std::min(k, first + kSgemmBlockK); ++p) {
            sum = std::fma(a[i * a_row + p * a_column], b[p * b_row + j * b_column], sum);
          }
          total = first == 0 && !options.accumulate ? sum : total + sum;
        }
        c[i * ldc + j] = options.bias == nullptr ? total : total + options.bias[j];
      }
    }
  });
}

}  // namespace weir
