#include <algorithm>
#include <cstring>

#include "backend/cpu/parallel.h"
#include "backend/kernel.h"
#include "kernels/common/token_blocks.h"
#include "kernels/common/vector_loops.h"
#include "kernels/rms_norm/row_loops.h"

namespace weir {
namespace {

void LaunchRmsNorm(KernelContext& c) {
  const int64_t h = c.inputs[1].elements(), n = h == 0 ? 0 : c.inputs[0].elements() / h;
  const float epsilon = static_cast<float>(c.attributes().Float("epsilon", 1e-5));
  const float *x = c.inputs[0].data<float>(), *gamma = c.inputs[1].data<float>();
  float* y = c.outputs[0].data<float>();
  float* rstd = c.outputs.size() > 1 ? c.outputs[1].data<float>() : nullptr;
  ParallelFor(n, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float r = RmsNormRow(x + i * h, gamma, h, epsilon, y + i * h);
      if (rstd != nullptr) rstd[i] = r;
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
      RmsNormGradientRow(x + i * h, gamma, dy + i * h, rstd[i], h, dx + i * h);
    }
  });
  if (c.outputs.size() < 2) return;
  float* dgamma = c.outputs[1].data<float>();
  if (!c.has(4)) std::memset(dgamma, 0, static_cast<size_t>(h) * sizeof(float));
  constexpr int64_t kColumns = 128;
  ParallelFor(h, 64, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kColumns) {
      const int64_t width = std::min(kColumns, end - first);
      for (int64_t row = 0; row < n; row += kTokenBlockRows) {
        float block[kColumns] = {};
        for (int64_t i = row; i < std::min(n, row + kTokenBlockRows); ++i) {
          AddGammaGradient(x + i * h + first, dy + i * h + first, rstd[i], width, block);
        }
        AddTo(block, width, dgamma + first);
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
