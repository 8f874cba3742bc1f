#include "backend/cpu/parallel.h"
#include "backend/kernel.h"
#include "kernels/adamw/bucket_stream.h"
#include "kernels/adamw/config.h"
#include "kernels/adamw/update_loops.h"

namespace weir {
namespace {

AdamWScalars Scalars(const KernelContext& c) {
  const AdamWStep s(c.attributes(), *c.inputs[4].data<double>(), *c.inputs[5].data<int64_t>());
  return {.coefficient = *c.inputs[6].data<float>(),
          .decay = static_cast<float>(s.decay),
          .beta1 = static_cast<float>(s.beta1),
          .one_minus_beta1 = static_cast<float>(1 - s.beta1),
          .beta2 = static_cast<float>(s.beta2),
          .one_minus_beta2 = static_cast<float>(1 - s.beta2),
          .epsilon = static_cast<float>(s.epsilon),
          .step_size = static_cast<float>(s.step_size),
          .root_correction2 = static_cast<float>(s.root_correction2)};
}

void Update(const AdamWScalars& scalars, const float* gradient, int64_t count, float* p, float* m, float* v) {
  ParallelFor(count, 1 << 14, [&](int64_t begin, int64_t end) {
    AdamWUpdate(scalars, gradient + begin, end - begin, p + begin, m + begin, v + begin);
  });
}

void LaunchAdamW(KernelContext& c) {
  const AdamWScalars scalars = Scalars(c);
  if (!std::isfinite(scalars.coefficient)) return;
  Update(scalars, c.inputs[1].data<float>(), c.inputs[1].elements(), c.outputs[0].data<float>(), c.outputs[1].data<float>(),
         c.outputs[2].data<float>());
}

void LaunchOffloadStreamAdamW(KernelContext& c) {
  const AdamWScalars scalars = Scalars(c);
  if (!std::isfinite(scalars.coefficient)) return;
  const float* gradient = c.inputs[1].data<float>();
  float* p = c.outputs[0].data<float>();
  StreamBuckets(c.stream->copies(), Buckets(c.attributes(), c.inputs[1].elements()), c.outputs[1].data<float>(),
                c.outputs[2].data<float>(), reinterpret_cast<float*>(c.workspace.data()),
                [&](int64_t offset, int64_t count, float* m, float* v) {
                  Update(scalars, gradient + offset, count, p + offset, m, v);
                });
}

}  // namespace

const Kernel& AdamWCpuKernel() {
  static const Kernel kernel{.launch = LaunchAdamW};
  return kernel;
}

const Kernel& OffloadStreamAdamWCpuKernel() {
  static const Kernel kernel{.launch = LaunchOffloadStreamAdamW, .workspace_bytes = BucketWorkspace};
  return kernel;
}

}  // namespace weir
