#include <algorithm>

#include "backend/cpu/parallel.h"
#include "kernels/common/reference_kernel.h"
#include "kernels/rotary/reference.h"

namespace weir {
namespace {

struct RotaryRow {
  int64_t half, width;
  bool from_interleaved, to_interleaved;
};

// kSign 1: the rotation; -1: its transpose.
template <int kSign>
void RotateRow(const RotaryRow& r, const float* x, const float* cos, const float* sin, float* y) {
  const int64_t x_step = r.from_interleaved ? 2 : 1, y_step = r.to_interleaved ? 2 : 1;
  const float* x2 = x + RotarySecond(0, r.half, r.from_interleaved);
  float* y2 = y + RotarySecond(0, r.half, r.to_interleaved);
  for (int64_t i = 0; i < r.half; ++i) {
    const float a = x[i * x_step], b = x2[i * x_step], s = kSign * sin[i];
    y[i * y_step] = a * cos[i] - b * s;
    y2[i * y_step] = b * cos[i] + a * s;
  }
  std::copy(x + 2 * r.half, x + r.width, y + 2 * r.half);
}

template <int kSign>
void LaunchRotate(KernelContext& c) {
  const Dims& dims = c.inputs[0].dims;
  const int64_t length = dims[1], heads = dims[2], width = dims[3];
  const int64_t half = c.inputs[1].dims[1];
  const bool in = c.attributes().Int("input_interleaved", 0) != 0;
  const bool out = c.attributes().Int("output_interleaved", 0) != 0;
  const RotaryRow row{half, width, kSign > 0 ? in : out, kSign > 0 ? out : in};
  const float *x = c.inputs[0].data<float>(), *cos = c.inputs[1].data<float>();
  const float* sin = c.inputs[2].data<float>();
  float* y = c.outputs[0].data<float>();
  ParallelFor(dims[0] * length, DivCeil(1 << 13, heads * width + 1),
              [&](int64_t begin, int64_t end) {
                for (int64_t token = begin; token < end; ++token) {
                  const int64_t table = token % length * half;
                  for (int64_t head = 0; head < heads; ++head) {
                    const int64_t at = (token * heads + head) * width;
                    RotateRow<kSign>(row, x + at, cos + table, sin + table, y + at);
                  }
                }
              });
}

}  // namespace

// S*d numbers a launch: the reference is fast enough.
WEIR_REFERENCE_CPU_KERNEL(RotaryTable)

const Kernel& RotaryCpuKernel() {
  static const Kernel kernel{.launch = LaunchRotate<1>};
  return kernel;
}

const Kernel& RotaryGradientCpuKernel() {
  static const Kernel kernel{.launch = LaunchRotate<-1>};
  return kernel;
}

}  // namespace weir
