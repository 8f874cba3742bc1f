#include <cstring>

#include "backend/cpu/parallel.h"
#include "backend/kernel.h"

namespace weir {
namespace {

void LaunchZeroFill(KernelContext& c) {
  const auto bytes = static_cast<size_t>(c.outputs[0].size_bytes());
  if (bytes > 0) std::memset(c.outputs[0].bytes, 0, bytes);
}

void LaunchAccumulate(KernelContext& c) {
  float* acc = c.outputs[0].data<float>();
  const float* g = c.inputs[1].data<float>();
  ParallelFor(c.outputs[0].elements(), 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) acc[k] += g[k];
  });
}

}  // namespace

const Kernel& ZeroFillCpuKernel() {
  static const Kernel kernel{.launch = LaunchZeroFill};
  return kernel;
}
const Kernel& ZerosCpuKernel() {
  static const Kernel kernel{.launch = LaunchZeroFill};
  return kernel;
}
const Kernel& AccumulateCpuKernel() {
  static const Kernel kernel{.launch = LaunchAccumulate};
  return kernel;
}

}  // namespace weir
