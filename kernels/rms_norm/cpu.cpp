#include <cmath>
#include <cstring>

#include "backend/cpu/parallel.h"
#include "backend/kernel.h"

namespace weir {
namespace {

constexpr int64_t kBlockRows = 4096;  // canonical token block of every dense parameter gradient

void LaunchRmsNorm(KernelContext& c) {
  const int64_t h = c.inputs[1].elements(), n = h == 0 ? 0 : c.inputs[0].elements() / h;
  const float epsilon = static_cast<float>(c.attributes().Float("epsilon", 1e-5));
  const float *x = c.inputs[0].data<float>(), *gamma = c.inputs[1].data<float>();
  float* y = c.outputs[0].data<float>();
  float* rstd = c.outputs.size() > 1 ? c.outputs[1].data<float>() : nullptr;
  ParallelFor(n, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* row = x + i * h;
      // Eight interleaved partial sums: vectorises, and one definition whatever the split of rows.
      float partial[8] = {};
      for (int64_t j = 0; j < h; ++j) partial[j % 8] = std::fma(row[j], row[j], partial[j % 8]);
      float sum = 0;
      for (float p : partial) sum += p;
      const float r = 1 / std::sqrt(sum / static_cast<float>(h) + epsilon);
      if (rstd != nullptr) rstd[i] = r;
      for (int64_t j = 0; j < h; ++j) y[i * h + j] = gamma[j] * (row[j] * r);
    }
  });
}

void LaunchRmsNormGradient(KernelContext& c) {
  const int64_t h = c.inputs[1].elements(), n = h == 0 ? 0 : c.inputs[0].elements() / h;
  const float *x = c.inputs[0].data<float>(), *gamma = c.inputs[1].data<float>();
  const float *rstd = c.inputs[2].data<float>(), *dy = c.inputs[3].data<float>();
  float* dx = c.outputs[0].data<float>();
  ParallelFor(n, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float r = rstd[i];
      float partial[8] = {};
      for (int64_t j = 0; j < h; ++j) {
        partial[j % 8] = std::fma(gamma[j] * dy[i * h + j], x[i * h + j], partial[j % 8]);
      }
      float dot = 0;
      for (float p : partial) dot += p;
      dot *= r * r * r / static_cast<float>(h);
      for (int64_t j = 0; j < h; ++j) {
        dx[i * h + j] = r * gamma[j] * dy[i * h + j] - dot * x[i * h + j];
      }
    }
  });
  if (c.outputs.size() < 2) return;
  float* dgamma = c.outputs[1].data<float>();
  if (!c.has(4)) std::memset(dgamma, 0, static_cast<size_t>(h) * sizeof(float));
  ParallelFor(h, 64, [&](int64_t begin, int64_t end) {
    float block[64];
    for (int64_t first = begin; first < end; first += 64) {
      const int64_t width = std::min<int64_t>(64, end - first);
      for (int64_t row = 0; row < n; row += kBlockRows) {
        std::memset(block, 0, sizeof(block));
        for (int64_t i = row; i < std::min(n, row + kBlockRows); ++i) {
          for (int64_t j = 0; j < width; ++j) {
            const int64_t at = i * h + first + j;
            block[j] = std::fma(dy[at], x[at] * rstd[i], block[j]);
          }
        }
        for (int64_t j = 0; j < width; ++j) dgamma[first + j] += block[j];
      }
    }
  });
}

}  // namespace

const Kernel& RmsNormCpuKernel() {
  static const Kernel kernel{.launch = LaunchRmsNorm};
  return kernel;
}

const Kernel& RmsNormGradientCpuKernel() {
  static const Kernel kernel{.launch = LaunchRmsNormGradient};
  return kernel;
}

}  // namespace weir
