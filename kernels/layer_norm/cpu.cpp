#include <algorithm>
#include <cstring>

#include "backend/cpu/parallel.h"
#include "kernels/common/reference_kernel.h"
#include "kernels/common/token_blocks.h"
#include "kernels/common/vector_loops.h"
#include "kernels/layer_norm/norm_loops.h"
#include "kernels/layer_norm/reference.h"
#include "kernels/reduce/reduce_loops.h"

namespace weir {
namespace {

constexpr int64_t kGrain = 1 << 13;  // elements
constexpr int64_t kColumns = 64;     // of a parameter gradient summed together

struct RowStatistics {
  float mean, r;
};

RowStatistics StatisticsOf(const float* x, int64_t count, float epsilon) {
  const float mean = SumOf(x, count) / static_cast<float>(count);
  return {mean,
          1 / std::sqrt(CenteredSquares(x, count, mean) / static_cast<float>(count) + epsilon)};
}

NormView View(const KernelContext& c) {
  return ViewNorm(c.inputs[0].dims, c.attributes().Int("axis", -1));
}
float Epsilon(const KernelContext& c) {
  return static_cast<float>(c.attributes().Float("epsilon", 1e-5f));
}

void LaunchLayerNorm(KernelContext& c) {
  const NormView view = View(c);
  const int64_t n = view.length;
  if (c.inputs[1].elements() != n || (c.has(2) && c.inputs[2].elements() != n))
    return LaunchReference(c);
  const float epsilon = Epsilon(c);
  const float *x = c.inputs[0].data<float>(), *gamma = c.inputs[1].data<float>();
  const float* beta = c.has(2) ? c.inputs[2].data<float>() : nullptr;
  float* y = c.outputs[0].data<float>();
  const auto statistic = [&](size_t o) {
    return c.outputs.size() > o ? c.outputs[o].data<float>() : nullptr;
  };
  float *means = statistic(1), *inverses = statistic(2);
  ParallelFor(view.rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(n, 1)),
              [&](int64_t begin, int64_t end) {
                for (int64_t row = begin; row < end; ++row) {
                  const RowStatistics s = StatisticsOf(x + row * n, n, epsilon);
                  if (means != nullptr) means[row] = s.mean;
                  if (inverses != nullptr) inverses[row] = s.r;
                  Normalize(x + row * n, n, s.mean, s.r, gamma, beta, y + row * n);
                }
              });
}

// Columns [first, first + width) of the scale and bias gradients: token blocks from zero, folded in
// order.
void AddParameterGradients(const KernelContext& c, const NormView& view,
                           const RowStatistics* statistics, int64_t first, int64_t width) {
  const int64_t n = view.length;
  const float *x = c.inputs[0].data<float>() + first, *dy = c.inputs[2].data<float>() + first;
  float* dgamma = c.outputs[1].data<float>() + first;
  float* dbeta = c.outputs.size() > 2 ? c.outputs[2].data<float>() + first : nullptr;
  float gamma_block[kColumns], beta_block[kColumns];
  for (int64_t block = 0; block < view.rows; block += kTokenBlockRows) {
    std::fill(gamma_block, gamma_block + width, 0.0f);
    std::fill(beta_block, beta_block + width, 0.0f);
    for (int64_t row = block; row < std::min(view.rows, block + kTokenBlockRows); ++row) {
      AddNormalized(x + row * n, dy + row * n, width, statistics[row].mean, statistics[row].r,
                    gamma_block);
      if (dbeta != nullptr) AddTo(dy + row * n, width, beta_block);
    }
    AddTo(gamma_block, width, dgamma);
    if (dbeta != nullptr) AddTo(beta_block, width, dbeta);
  }
}

int64_t GradientWorkspace(const Node& node) {
  const NormView view = ViewNorm(ToDims(node.in(0)->shape), node.attributes.Int("axis", -1));
  return view.rows * static_cast<int64_t>(sizeof(RowStatistics));
}

void LaunchLayerNormGradient(KernelContext& c) {
  const NormView view = View(c);
  const int64_t n = view.length;
  const float epsilon = Epsilon(c);
  const float *x = c.inputs[0].data<float>(), *gamma = c.inputs[1].data<float>(),
              *dy = c.inputs[2].data<float>();
  float* dx = c.outputs[0].data<float>();
  auto* statistics = reinterpret_cast<RowStatistics*>(c.workspace.data());
  ParallelFor(view.rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(n, 1)),
              [&](int64_t begin, int64_t end) {
                for (int64_t row = begin; row < end; ++row) {
                  const RowStatistics s = statistics[row] = StatisticsOf(x + row * n, n, epsilon);
                  NormSums means =
                      SumNormGradient(x + row * n, dy + row * n, gamma, n, s.mean, s.r);
                  means.g /= static_cast<float>(n);
                  means.gh /= static_cast<float>(n);
                  NormSlope(x + row * n, dy + row * n, gamma, n, s.mean, s.r, means, dx + row * n);
                }
              });
  if (c.outputs.size() < 2) return;
  for (size_t o = 1; o < c.outputs.size(); ++o) {
    if (!c.has(o + 2) && n > 0)
      std::memset(c.outputs[o].bytes, 0, static_cast<size_t>(n) * sizeof(float));
  }
  ParallelFor(DivCeil(n, kColumns), 1, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      AddParameterGradients(c, view, statistics, k * kColumns,
                            std::min(kColumns, n - k * kColumns));
    }
  });
}

}  // namespace

const Kernel& LayerNormalizationCpuKernel() {
  static const Kernel kernel{.launch = LaunchLayerNorm};
  return kernel;
}
const Kernel& LayerNormGradientCpuKernel() {
  static const Kernel kernel{.launch = LaunchLayerNormGradient,
                             .workspace_bytes = GradientWorkspace};
  return kernel;
}
WEIR_REFERENCE_CPU_KERNEL(RMSNormalization)
WEIR_REFERENCE_CPU_KERNEL(SimplifiedLayerNormalization)

}  // namespace weir
