// What a build without CUDA answers.
#include "backend/cuda_communicator.h"
#include "backend/device.h"
#include "backend/profiler.h"
#include "graph/error.h"

namespace weir {
namespace {

[[noreturn]] void Refuse() {
  throw Error(ErrorCode::kUnsupportedOp,
              "this weir was built without CUDA; rebuild where nvcc is found, or use --device cpu");
}

}  // namespace

std::shared_ptr<Device> MakeCudaDevice(int) { Refuse(); }
std::unique_ptr<Communicator> MakeNcclCommunicator(Communicator&, Device&, std::chrono::milliseconds) { Refuse(); }

int CudaDeviceCount() { return 0; }

bool ProfilerRange::IsWatched() { return false; }
void ProfilerRange::Begin(const Node&) {}
void ProfilerRange::End() {}

}  // namespace weir
