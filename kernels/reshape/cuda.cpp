#include "backend/cuda/cuda_error.h"
#include "backend/cuda/cuda_stream.h"
#include "kernels/device/copy.h"
#include "kernels/device/types.h"

namespace weir {
namespace {

void LaunchDropout(KernelContext& c) {
  LaunchDeviceCopy(c);
  if (c.outputs.size() < 2 || !c.outputs[1]) return;
  CheckCuda(cudaMemsetAsync(c.outputs[1].bytes, 1, static_cast<size_t>(c.outputs[1].size_bytes()),
                            CudaQueue(c).stream),
            "Dropout");
}

}  // namespace

WEIR_CUDA_KERNEL(Reshape, .launch = LaunchDeviceCopy)
WEIR_CUDA_KERNEL(Squeeze, .launch = LaunchDeviceCopy)
WEIR_CUDA_KERNEL(Unsqueeze, .launch = LaunchDeviceCopy)
WEIR_CUDA_KERNEL(Flatten, .launch = LaunchDeviceCopy)
WEIR_CUDA_KERNEL(Identity, .launch = LaunchDeviceCopy)
WEIR_CUDA_KERNEL(Dropout, .launch = LaunchDropout)

}  // namespace weir
