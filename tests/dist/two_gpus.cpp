#include "tests/dist/two_gpus.h"

#include "backend/cpu/thread_communicator.h"
#include "backend/cuda_communicator.h"

namespace weir {

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
