// Offload on the GPU changes no bit of a training step: copies overlap kernels, events order them.
#include "backend/device.h"
#include "tests/optim/same_bits.h"

namespace weir {
namespace {

TEST_P(EveryExport, OffloadOnTheGpuChangesNoBit) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no GPU on this machine";
  const auto graph = LoadFamily(GetParam());
  const auto run = [&](const TrainingOptions& options) {
    PassManager passes;
    TrainingSession session(*graph, options, 2, 13, {}, passes, DeviceKind::kCuda);
    return BitsOfRun(session);
  };
  const RunBits twin = run({});
  TrainingOptions options;
  options.recompute = "layer";
  ExpectSameBits(run(options), twin, "recompute");
  options.host_budget = int64_t{1} << 30;
  ExpectSameBits(run(options), twin, "boundaries on the host");
  for (const int64_t slots : {1, 2, 3}) {
    options.offload = {.bucket = 1000, .slots = slots, .resident = 0};
    ExpectSameBits(run(options), twin, StrCat("moments on the host, slots ", slots));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EveryExport, testing::ValuesIn(kFamilies),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace weir
