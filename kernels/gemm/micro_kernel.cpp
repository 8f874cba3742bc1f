#include "kernels/gemm/micro_kernel.h"

#include <atomic>
#include <cmath>
#include <vector>

namespace weir {
namespace {

constexpr int kColumns = 16;

template <int kRows>
void Run(const TileArgs& t) {
  float sum[kRows][kColumns] = {};
  const float *a = t.a, *b = t.b;
  for (int64_t p = 0; p < t.k; ++p, a += kRows, b += t.ldb) {
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kColumns; ++j) sum[i][j] = std::fma(a[i], b[j], sum[i][j]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kColumns; ++j) {
      float& c = t.c[i * t.ldc + j];
      c = t.add ? c + sum[i][j] : sum[i][j];
      if (t.bias != nullptr) c += t.bias[j];
    }
  }
}

std::atomic<const MicroKernel*> chosen = nullptr;

}  // namespace

const MicroKernel kScalarMicroKernel = {"scalar", 4, kColumns, {Run<1>, Run<2>, Run<3>, Run<4>}};

std::span<const MicroKernel* const> SupportedMicroKernels() {
  static const std::vector<const MicroKernel*> kernels = [] {
    std::vector<const MicroKernel*> found;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) found.push_back(&kAvx512MicroKernel);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
      found.push_back(&kAvx2MicroKernel);
    }
#endif
    found.push_back(&kScalarMicroKernel);
    return found;
  }();
  return kernels;
}

const MicroKernel& ActiveMicroKernel() {
  const MicroKernel* kernel = chosen.load(std::memory_order_relaxed);
  return kernel != nullptr ? *kernel : *SupportedMicroKernels().front();
}

void SetMicroKernel(const MicroKernel* kernel) { chosen = kernel; }

}  // namespace weir
