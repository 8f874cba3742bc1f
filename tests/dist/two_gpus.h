#pragma once
#include <gtest/gtest.h>

#include <functional>

#include "backend/communicator.h"
#include "backend/device.h"

// Says why a test of several GPUs does not run here.
#define WEIR_NEEDS_GPUS(count)                                                                     \
  if (weir::CudaDeviceCount() < (count)) {                                                         \
    GTEST_SKIP() << "needs " << (count) << " GPUs, this machine has " << weir::CudaDeviceCount(); \
  }                                                                                                \
  static_assert(true)

namespace weir {

// One rank on its GPU; `gpus` moves device memory, gpus.host() host memory.
using GpuRank = std::function<void(Communicator& gpus, Device& device)>;
// Runs it on as many threads as ranks, each with a GPU of its own and NCCL between them.
void RunOnGpus(int64_t ranks, const GpuRank& rank, std::chrono::milliseconds timeout = std::chrono::seconds(60));

}  // namespace weir
