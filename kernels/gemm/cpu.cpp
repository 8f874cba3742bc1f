#include "backend/cpu/parallel.h"
#include "backend/kernel.h"
#include "kernels/gemm/reference.h"
#include "kernels/gemm/sgemm.h"

namespace weir {
namespace {

float FloatAttribute(const KernelContext& c, const char* name) {
  return static_cast<float>(c.attributes().Float(name, 1));
}

void LaunchGemm(KernelContext& c) {
  const Dims &ad = c.inputs[0].dims, &bd = c.inputs[1].dims;
  const SgemmOptions options{.transpose_a = c.attributes().Int("transA", 0) != 0,
                             .transpose_b = c.attributes().Int("transB", 0) != 0};
  const int64_t m = c.outputs[0].dims[0], n = c.outputs[0].dims[1];
  float* y = c.outputs[0].data<float>();
  Sgemm(m, n, ad[options.transpose_a ? 0 : 1], c.inputs[0].data<float>(), ad[1],
        c.inputs[1].data<float>(), bd[1], y, n, options);
  const float alpha = FloatAttribute(c, "alpha"), beta = FloatAttribute(c, "beta");
  const float* bias = c.has(2) ? c.inputs[2].data<float>() : nullptr;
  if (alpha == 1 && bias == nullptr) return;
  const auto strides = GemmBiasStrides(bias != nullptr ? c.inputs[2].dims : Dims{});
  ParallelFor(m, DivCeil(1 << 14, n + 1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        float& value = y[i * n + j];
        value *= alpha;
        if (bias != nullptr) value += beta * bias[i * strides.first + j * strides.second];
      }
    }
  });
}

void LaunchGemmBiasGradient(KernelContext& c) {
  const Dims& dims = c.inputs[1].dims;
  const auto [row, column] = GemmBiasStrides(c.inputs[0].dims);
  const float* dy = c.inputs[1].data<float>();
  float* dc = c.outputs[0].data<float>();
  // Element `at` of dc gathers the rows and columns that its zero strides repeat.
  for (int64_t at = 0; at < c.outputs[0].elements(); ++at) {
    const int64_t i0 = row > 0 ? at / row : 0, j0 = column > 0 ? (row > 0 ? at % row : at) : 0;
    double sum = 0;
    for (int64_t i = i0; i < (row > 0 ? i0 + 1 : dims[0]); ++i) {
      for (int64_t j = j0; j < (column > 0 ? j0 + 1 : dims[1]); ++j) sum += dy[i * dims[1] + j];
    }
    dc[at] = static_cast<float>(sum * FloatAttribute(c, "beta"));
  }
}

}  // namespace

const Kernel& GemmCpuKernel() {
  static const Kernel kernel{.launch = LaunchGemm};
  return kernel;
}

const Kernel& GemmBiasGradientCpuKernel() {
  static const Kernel kernel{.launch = LaunchGemmBiasGradient};
  return kernel;
}

}  // namespace weir
