#include "backend/cuda/cuda_error.h"
#include "backend/cuda/cuda_stream.h"
#include "kernels/accumulate/cuda.h"

namespace weir {
namespace {

void LaunchZeroFill(KernelContext& c) {
  CheckCuda(cudaMemsetAsync(c.outputs[0].bytes, 0, static_cast<size_t>(c.outputs[0].size_bytes()), CudaQueue(c).stream),
            "ZeroFill");
}

void LaunchAccumulate(KernelContext& c) {
  cuda::Accumulate(c.outputs[0].data<float>(), c.inputs[1].data<float>(), c.outputs[0].elements(), CudaQueue(c).stream);
}

}  // namespace

const Kernel& ZeroFillCudaKernel() {
  static const Kernel kernel{.launch = LaunchZeroFill};
  return kernel;
}
const Kernel& ZerosCudaKernel() {
  static const Kernel kernel{.launch = LaunchZeroFill};
  return kernel;
}
const Kernel& AccumulateCudaKernel() {
  static const Kernel kernel{.launch = LaunchAccumulate};
  return kernel;
}

}  // namespace weir
