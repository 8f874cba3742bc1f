#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/cpu/parallel.h"
#include "kernels/common/reference_kernel.h"
#include "kernels/common/vector_loops.h"
#include "kernels/reduce/reduce_loops.h"
#include "kernels/softmax/reference.h"
#include "kernels/softmax/softmax_loops.h"

namespace weir {
namespace {

constexpr int64_t kGrain = 1 << 12;  // elements

void SoftmaxRow(const float* x, int64_t count, bool log, float* y) {
  const float top = MaxOf(x, count);
  if (log) return ShiftTwice(x, count, top, std::log(SumExp(x, count, top)), y);
  if (y != x) std::memcpy(y, x, static_cast<size_t>(count) * sizeof(float));
  const float sum = ExpInPlace(y, count, top);
  CopyScaled(y, count, 1 / sum, y);
}

void GradientRow(const float* y, const float* dy, int64_t count, bool log, float* dx) {
  if (log) return LogSoftmaxSlope(y, dy, count, SumOf(dy, count), dx);
  SoftmaxSlope(y, dy, count, Dot(y, dy, count), dx);
}

// Runs body(inputs, output) on every row along the axis; rows of a middle axis are gathered first.
template <size_t operands, class Body>
void ForEachRow(KernelContext& c, const Body& body) {
  const AxisView view = ViewAxis(c.outputs[0].dims, c.attributes().Int("axis", -1));
  const int64_t n = view.size, inner = view.inner;
  if (n == 0) return;
  float* out = c.outputs[0].data<float>();
  ParallelFor(view.outer * inner, std::max<int64_t>(1, kGrain / n),
              [&](int64_t begin, int64_t end) {
                std::vector<float> gathered(inner == 1 ? 0 : static_cast<size_t>(n) * operands);
                for (int64_t row = begin; row < end; ++row) {
                  const int64_t base = row / inner * n * inner + row % inner;
                  const float* rows[operands];
                  for (size_t k = 0; k < operands; ++k) {
                    const float* in = c.inputs[k].data<float>() + base;
                    rows[k] = in;
                    if (inner == 1) continue;
                    float* copy = gathered.data() + static_cast<int64_t>(k) * n;
                    for (int64_t j = 0; j < n; ++j) copy[j] = in[j * inner];
                    rows[k] = copy;
                  }
                  if (inner == 1) {
                    body(rows, out + base);
                    continue;
                  }
                  body(rows, gathered.data());
                  for (int64_t j = 0; j < n; ++j)
                    out[base + j * inner] = gathered[static_cast<size_t>(j)];
                }
              });
}

template <bool log>
void LaunchSoftmax(KernelContext& c) {
  if (c.inputs[0].dtype != DType::kFloat32) return LaunchReference(c);
  const int64_t n = ViewAxis(c.outputs[0].dims, c.attributes().Int("axis", -1)).size;
  ForEachRow<1>(c, [n](const float* const* in, float* y) { SoftmaxRow(in[0], n, log, y); });
}

void LaunchSoftmaxGradient(KernelContext& c) {
  const bool log = c.attributes().Int("log", 0) != 0;
  const int64_t n = ViewAxis(c.outputs[0].dims, c.attributes().Int("axis", -1)).size;
  ForEachRow<2>(
      c, [n, log](const float* const* in, float* dx) { GradientRow(in[0], in[1], n, log, dx); });
}

}  // namespace

const Kernel& SoftmaxCpuKernel() {
  static const Kernel kernel{.launch = LaunchSoftmax<false>};
  return kernel;
}
const Kernel& LogSoftmaxCpuKernel() {
  static const Kernel kernel{.launch = LaunchSoftmax<true>};
  return kernel;
}
const Kernel& SoftmaxGradientCpuKernel() {
  static const Kernel kernel{.launch = LaunchSoftmaxGradient};
  return kernel;
}

}  // namespace weir
