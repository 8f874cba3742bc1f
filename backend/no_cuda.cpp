// What a build without CUDA answers.
#include "backend/device.h"
#include "graph/error.h"

namespace weir {

std::shared_ptr<Device> MakeCudaDevice(int) {
  throw Error(ErrorCode::kUnsupportedOp,
              "this weir was built without CUDA; rebuild where nvcc is found, or use --device cpu");
}

int CudaDeviceCount() { return 0; }

}  // namespace weir
