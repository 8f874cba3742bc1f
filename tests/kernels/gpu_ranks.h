#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "backend/communicator.h"
#include "backend/device.h"
#include "graph/eval.h"

// Says why a test of several GPUs does not run here.
#define WEIR_NEEDS_GPUS(count)                                                                     \
  if (weir::CudaDeviceCount() < (count)) {                                                         \
    GTEST_SKIP() << "needs " << (count) << " GPUs, this machine has " << weir::CudaDeviceCount(); \
  }                                                                                                \
  static_assert(true)

// At the head of a test body: everything after it runs in `count` processes, one per rank and GPU, as users run them, each of
// which makes its own rank's part in RunOnGpus. (Threads of one process would share the driver's locks: the first launch of a
// kernel holds them until its GPU is idle, which may wait for the other.)
#define WEIR_ON_GPUS(count)                    \
  WEIR_NEEDS_GPUS(count);                      \
  if (weir::StartedRanks(count)) return;       \
  static_assert(true)

namespace weir {

// False in a rank's process; elsewhere runs the current test again in `ranks` processes and fails when one of them does.
bool StartedRanks(int64_t ranks);

// Runs this process's own rank, on every rank's process at once. A failure of one ends all and is thrown.
void RunOwnRank(int64_t ranks, const std::function<void(Communicator& host)>& rank);
// The same for GPUs; for CPUs all ranks, as threads of this process.
void RunOnHosts(DeviceKind kind, int64_t ranks, const std::function<void(Communicator& host)>& rank);

// One rank on its GPU; `gpus` moves device memory, gpus.host() host memory.
using GpuRank = std::function<void(Communicator& gpus, Device& device)>;
void RunOnGpus(int64_t ranks, const GpuRank& rank, std::chrono::milliseconds timeout = std::chrono::seconds(60));

// For an Executor within that call.
inline std::shared_ptr<Device> Borrowed(Device& device) { return {std::shared_ptr<void>(), &device}; }

// Every rank's, on every rank.
std::vector<std::string> GatherBytes(Communicator& host, const std::string& own);
std::vector<std::vector<Array<float>>> GatherArrays(Communicator& host, const std::vector<Array<float>>& own);

}  // namespace weir
