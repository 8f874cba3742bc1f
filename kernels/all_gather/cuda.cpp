#include "kernels/all_gather/gather.h"
#include "kernels/device/copy.h"
#include "kernels/device/types.h"

namespace weir {

WEIR_CUDA_KERNEL(AllGatherRows, .launch = [](KernelContext& c) { LaunchAllGatherRows(c, LaunchDeviceCopy); },
                 .unsupported = RefuseAllButActivations)

}  // namespace weir
