#include "backend/cpu/parallel.h"
#include "backend/kernel.h"
#include "kernels/adamw/config.h"
#include "kernels/adamw/update_loops.h"

namespace weir {
namespace {

void LaunchAdamW(KernelContext& c) {
  const AdamWStep s(c.attributes(), *c.inputs[4].data<double>(), *c.inputs[5].data<int64_t>());
  const AdamWScalars scalars{.coefficient = *c.inputs[6].data<float>(),
                             .decay = static_cast<float>(s.decay),
                             .beta1 = static_cast<float>(s.beta1),
                             .one_minus_beta1 = static_cast<float>(1 - s.beta1),
                             .beta2 = static_cast<float>(s.beta2),
                             .one_minus_beta2 = static_cast<float>(1 - s.beta2),
                             .epsilon = static_cast<float>(s.epsilon),
                             .step_size = static_cast<float>(s.step_size),
                             .root_correction2 = static_cast<float>(s.root_correction2)};
  if (!std::isfinite(scalars.coefficient)) return;
  const float* gradient = c.inputs[1].data<float>();
  float *p = c.outputs[0].data<float>(), *m = c.outputs[1].data<float>(),
        *v = c.outputs[2].data<float>();
  ParallelFor(c.inputs[1].elements(), 1 << 14, [&](int64_t begin, int64_t end) {
    AdamWUpdate(scalars, gradient + begin, end - begin, p + begin, m + begin, v + begin);
  });
}

}  // namespace

const Kernel& AdamWCpuKernel() {
  static const Kernel kernel{.launch = LaunchAdamW};
  return kernel;
}

}  // namespace weir
