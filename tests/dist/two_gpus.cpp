#include "tests/dist/two_gpus.h"

#include <cstdlib>

#include "backend/cpu/thread_communicator.h"
#include "backend/cuda_communicator.h"

namespace weir {
namespace {

// A kernel that is loaded at its first launch holds up the other threads of the process until the GPU is idle; if that waits for
// a transfer whose other end such a thread is to start, both hang. Ranks that are processes cannot; these load everything first, which
// takes seconds (CUDA_MODULE_LOADING=LAZY in the environment: at once, and rarely a hang).
[[maybe_unused]] const bool kLoadsFirst = setenv("CUDA_MODULE_LOADING", "EAGER", 0) == 0;

}  // namespace

void RunOnGpus(int64_t ranks, const GpuRank& rank, std::chrono::milliseconds timeout) {
  RunRanks(ranks, [&](Communicator& host) {
    const auto device = MakeCudaDevice(static_cast<int>(host.rank()));
    const auto gpus = MakeNcclCommunicator(host, *device, timeout);
    rank(*gpus, *device);
    device->Synchronize();
    host.Barrier({"Barrier", "end"});
  });
}

}  // namespace weir
