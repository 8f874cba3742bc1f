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

// Of `count` elements from `offset` on.
void Update(KernelContext& c, const AdamWScalars& scalars, int64_t offset, int64_t count, const StateParts& state) {
  const float* gradient = c.inputs[1].data<float>() + offset;
  ParallelFor(count, 1 << 14, [&](int64_t begin, int64_t end) {
    const int64_t at = offset + begin, n = end - begin;
    if (IsSplit(c.node)) {
      SplitAdamWUpdate(scalars, gradient + begin, n, c.outputs[0].data<uint16_t>() + at, state.low + begin, state.m + begin, state.v + begin);
    } else {
      AdamWUpdate(scalars, gradient + begin, n, c.outputs[0].data<float>() + at, state.m + begin, state.v + begin);
    }
  });
}

void LaunchAdamW(KernelContext& c) {
  const AdamWScalars scalars = Scalars(c);
  if (std::isfinite(scalars.coefficient)) Update(c, scalars, 0, c.inputs[1].elements(), StateOf(c));
}

// With a coefficient that is not finite the state travels and comes back as it was: what the node before started is awaited.
void LaunchOffloadStreamAdamW(KernelContext& c) {
  const AdamWScalars scalars = Scalars(c);
  const bool finite = std::isfinite(scalars.coefficient);
  StreamState(c, c.stream->copies(), [&](int64_t offset, int64_t count, const StateParts& state) {
    if (finite) Update(c, scalars, offset, count, state);
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

const Kernel& PrefetchStateCpuKernel() {
  static const Kernel kernel{.launch = [](KernelContext& c) { PrefetchState(c, c.stream->copies()); }};
  return kernel;
}

}  // namespace weir
