#include "backend/cuda/cuda_error.h"
#include "backend/cuda/cuda_stream.h"
#include "kernels/device/copy.h"

namespace weir {

void LaunchDeviceCopy(KernelContext& c) {
  const Tensor &x = c.inputs[0], &y = c.outputs[0];
  if (x.bytes == y.bytes || y.size_bytes() == 0) return;
  CheckCuda(cudaMemcpyAsync(y.bytes, x.bytes, static_cast<size_t>(y.size_bytes()),
                            cudaMemcpyDeviceToDevice, CudaQueue(c).stream),
            "copying");
}

}  // namespace weir
