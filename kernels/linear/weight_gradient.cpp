#include "kernels/linear/weight_gradient.h"

#include <algorithm>

#include "backend/cpu/parallel.h"
#include "kernels/common/vector_loops.h"
#include "kernels/gemm/sgemm.h"

namespace weir {
namespace {

int64_t StripRows(int64_t k) { return std::clamp<int64_t>((1 << 20) / (k + 1), 16, 512); }

}  // namespace

int64_t WeightGradientPartial(int64_t m, int64_t k) { return std::min(m, StripRows(k)) * k; }

void AddWeightGradientBlock(const WeightGradientBlock& b, float* partial, float* dw) {
  const SgemmOptions options{.transpose_a = true};
  if (!b.add) return Sgemm(b.m, b.k, b.rows, b.dy, b.dy_stride, b.x, b.k, dw, b.k, options);
  for (int64_t first = 0; first < b.m; first += StripRows(b.k)) {
    const int64_t strip = std::min(StripRows(b.k), b.m - first);
    Sgemm(strip, b.k, b.rows, b.dy + first, b.dy_stride, b.x, b.k, partial, b.k, options);
    float* out = dw + first * b.k;
    ParallelFor(strip * b.k, 1 << 14, [&](int64_t begin, int64_t end) {
      AddTo(partial + begin, end - begin, out + begin);
    });
  }
}

}  // namespace weir
