#include "backend/device.h"
#include "backend/kernel.h"

namespace weir {
namespace {

// The device's copy engine does the work, so that one kernel serves every device.
template <CopyEngine::Direction direction>
void LaunchStart(KernelContext& c) {
  const Tensor &from = c.inputs[0], &to = c.outputs[0];
  c.stream->copies().Start(c.attributes().Int("event"), direction, to.bytes, from.bytes, from.size_bytes());
}

void LaunchWait(KernelContext& c) { c.stream->copies().Wait(c.attributes().Int("event")); }

const Kernel kStash{.launch = LaunchStart<CopyEngine::Direction::kToHost>};
const Kernel kFetch{.launch = LaunchStart<CopyEngine::Direction::kToDevice>};
const Kernel kWait{.launch = LaunchWait};

}  // namespace

const Kernel& StashStartCpuKernel() { return kStash; }
const Kernel& StashWaitCpuKernel() { return kWait; }
const Kernel& FetchStartCpuKernel() { return kFetch; }
const Kernel& FetchWaitCpuKernel() { return kWait; }

}  // namespace weir
