#include "backend/cpu/parallel.h"
#include "kernels/common/reference_kernel.h"
#include "kernels/rotary/row_loops.h"

namespace weir {
namespace {

// sign 1: the rotation; -1: its transpose, with the layouts of input and output exchanged.
void Rotate(KernelContext& c, float sign) {
  const Dims& dims = c.inputs[0].dims;
  const int64_t length = dims[1], heads = dims[2], width = dims[3];
  const int64_t half = c.inputs[1].dims[1];
  const bool in = c.attributes().Int("input_interleaved", 0) != 0;
  const bool out = c.attributes().Int("output_interleaved", 0) != 0;
  const RotaryRow row{sign, half, width, sign > 0 ? in : out, sign > 0 ? out : in};
  const float *x = c.inputs[0].data<float>(), *cos = c.inputs[1].data<float>();
  const float* sin = c.inputs[2].data<float>();
  float* y = c.outputs[0].data<float>();
  ParallelFor(dims[0] * length, DivCeil(1 << 13, heads * width + 1),
              [&](int64_t begin, int64_t end) {
                for (int64_t token = begin; token < end; ++token) {
                  const int64_t table = token % length * half;
                  for (int64_t head = 0; head < heads; ++head) {
                    const int64_t at = (token * heads + head) * width;
                    RotateRow(row, x + at, cos + table, sin + table, y + at);
                  }
                }
              });
}

}  // namespace

// S*d numbers a launch: the reference is fast enough.
WEIR_REFERENCE_CPU_KERNEL(RotaryTable)

const Kernel& RotaryCpuKernel() {
  static const Kernel kernel{.launch = [](KernelContext& c) { Rotate(c, 1); }};
  return kernel;
}

const Kernel& RotaryGradientCpuKernel() {
  static const Kernel kernel{.launch = [](KernelContext& c) { Rotate(c, -1); }};
  return kernel;
}

}  // namespace weir
