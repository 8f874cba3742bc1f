#include "kernels/all_gather/gather.h"
#include "kernels/device/beside.h"
#include "kernels/device/copy.h"
#include "kernels/device/types.h"

namespace weir {
namespace {

void Launch(KernelContext& c) {
  if (c.attributes().Int("ranks", 1) == 1 || c.attributes().Int("event", -1) < 0) return LaunchAllGatherRows(c, LaunchDeviceCopy);
  RunBeside(c, [&](Communicator& communicator, CUstream_st*) { LaunchAllGatherRows(c, LaunchDeviceCopy, &communicator); });
}

}  // namespace

WEIR_CUDA_KERNEL(AllGatherRows, .launch = Launch, .unsupported = RefuseAllButActivations)

}  // namespace weir
