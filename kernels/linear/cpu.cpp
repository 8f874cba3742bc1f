#include <algorithm>
#include <cstring>

#include "backend/cpu/parallel.h"
#include "backend/kernel.h"
#include "kernels/common/token_blocks.h"
#include "kernels/common/vector_loops.h"
#include "kernels/gemm/sgemm.h"
#include "kernels/linear/weight_gradient.h"

namespace weir {
namespace {

void LaunchLinear(KernelContext& c) {
  const int64_t m = c.inputs[1].dims[0], k = c.inputs[1].dims[1];
  const int64_t n = m == 0 ? 0 : c.outputs[0].elements() / m;
  Sgemm(n, m, k, c.inputs[0].data<float>(), k, c.inputs[1].data<float>(), k,
        c.outputs[0].data<float>(), m,
        {.transpose_b = true, .bias = c.has(2) ? c.inputs[2].data<float>() : nullptr});
}

int64_t WeightGradientWorkspace(const Node& node) {
  const Dims dw = ToDims(node.out(0)->shape);
  return WeightGradientPartial(dw[0], dw[1]) * static_cast<int64_t>(sizeof(float));
}

void LaunchLinearWeightGradient(KernelContext& c) {
  const int64_t m = c.outputs[0].dims[0], k = c.outputs[0].dims[1];
  const Dims& dims = c.inputs[0].dims;
  const int64_t n = NumElements(Dims(dims.begin(), dims.end() - 1));
  const float *x = c.inputs[0].data<float>(), *dy = c.inputs[1].data<float>();
  float *dw = c.outputs[0].data<float>(), *partial = reinterpret_cast<float*>(c.workspace.data());
  for (int64_t row = 0; row == 0 || row < n; row += kTokenBlockRows) {
    const int64_t block = std::min(kTokenBlockRows, n - row);
    AddWeightGradientBlock({.m = m,
                            .k = k,
                            .rows = block,
                            .dy = dy + row * m,
                            .dy_stride = m,
                            .x = x + row * k,
                            .add = row > 0 || c.has(2)},
                           partial, dw);
  }
}

void LaunchBiasGradient(KernelContext& c) {
  const int64_t m = c.outputs[0].elements(), n = m == 0 ? 0 : c.inputs[0].elements() / m;
  const float* dy = c.inputs[0].data<float>();
  float* db = c.outputs[0].data<float>();
  if (!c.has(1)) std::memset(db, 0, static_cast<size_t>(m) * sizeof(float));
  constexpr int64_t kColumns = 128;
  ParallelFor(m, kColumns / 2, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kColumns) {
      const int64_t width = std::min(kColumns, end - first);
      for (int64_t row = 0; row < n; row += kTokenBlockRows) {
        float block[kColumns] = {};
        for (int64_t i = row; i < std::min(n, row + kTokenBlockRows); ++i) {
          AddTo(dy + i * m + first, width, block);
        }
        AddTo(block, width, db + first);
      }
    }
  });
}

}  // namespace

const Kernel& LinearCpuKernel() {
  static const Kernel kernel{.launch = LaunchLinear};
  return kernel;
}

const Kernel& LinearWeightGradientCpuKernel() {
  static const Kernel kernel{.launch = LaunchLinearWeightGradient,
                             .workspace_bytes = WeightGradientWorkspace};
  return kernel;
}

const Kernel& BiasGradientCpuKernel() {
  static const Kernel kernel{.launch = LaunchBiasGradient};
  return kernel;
}

}  // namespace weir
