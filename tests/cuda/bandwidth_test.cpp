// The memory-bound kernels of a training step, timed beside a plain copy of the same device in the same process.
#include <gtest/gtest.h>

#include <iostream>

#include "bench/row_bench.h"

namespace weir {
namespace {

// A floor that catches a kernel which lost its vector loads; `weir bench rows --device cuda` prints the figures. Ops on
// 128 experts are bound by their launch and by the selection, not by memory.
TEST(CudaBandwidth, RowOpsRunNearACopy) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no GPU on this machine";
  const auto timings = TimeRowOps({.device = DeviceKind::kCuda});
  const double copy = timings.front().BytesPerSecond();
  for (const RowTiming& timing : timings) {
    std::cout << timing.name << ": " << timing.BytesPerSecond() * 1e-9 << " GB/s\n";
    if (timing.name.find("of 128") != std::string::npos) continue;
    EXPECT_GT(timing.BytesPerSecond(), 0.3 * copy) << timing.name;
  }
}

}  // namespace
}  // namespace weir
