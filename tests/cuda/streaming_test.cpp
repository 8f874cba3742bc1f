// Offload on the GPU changes no bit of a training step: copies overlap kernels, events order them.
#include "backend/device.h"
#include "tests/optim/same_bits.h"

namespace weir {
namespace {

RunBits BitsOnGpu(const Graph& graph, const TrainingOptions& options, bool split = true) {
  PassManager passes;
  if (!split) passes.disabled.insert("split_master");
  TrainingSession session(graph, options, 2, 13, {}, passes, DeviceKind::kCuda);
  return BitsOfRun(session);
}

// In bfloat16 too: what runs again is lowered as it was the first time, routers included.
TEST_P(EveryExport, OffloadOnTheGpuChangesNoBit) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no GPU on this machine";
  const auto graph = LoadFamily(GetParam());
  for (const char* precision : {"float32", "bfloat16"}) {
    TrainingOptions options;
    options.precision = precision;
    const RunBits twin = BitsOnGpu(*graph, options);
    options.recompute = "layer";
    for (const char* keep : {"attention", "none"}) {
      options.keep = keep;
      ExpectSameBits(BitsOnGpu(*graph, options), twin, StrCat(precision, ", keep ", keep));
    }
    options.host_budget = int64_t{1} << 30;
    ExpectSameBits(BitsOnGpu(*graph, options), twin, StrCat(precision, ", boundaries on the host"));
    options.keep = "attention";
    ExpectSameBits(BitsOnGpu(*graph, options), twin, StrCat(precision, ", boundaries and attention on the host"));
    for (const int64_t slots : {1, 2, 3}) {
      options.offload = {.bucket = 1000, .slots = slots, .resident = 0};
      ExpectSameBits(BitsOnGpu(*graph, options), twin, StrCat(precision, ", moments on the host, slots ", slots));
    }
  }
}

TEST_P(EveryExport, SplitMastersOnTheGpuChangeNoBit) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no GPU on this machine";
  const auto graph = LoadFamily(GetParam());
  for (const char* precision : {"bfloat16", "bfloat16-weights"}) {
    TrainingOptions options;
    options.precision = precision;
    options.deterministic = true;
    const RunBits whole = BitsOnGpu(*graph, options, /*split=*/false);
    ExpectSameBits(BitsOnGpu(*graph, options), whole, precision);
    for (const int64_t slots : {1, 3}) {
      options.offload = {.bucket = 1001, .slots = slots, .resident = slots == 3 ? 5000 : 0};
      ExpectSameBits(BitsOnGpu(*graph, options), whole, StrCat(precision, ", streamed, slots ", slots));
    }
  }
}

double RouterLossOf(const Graph& graph, const TrainingOptions& options, DeviceKind device) {
  PassManager passes;
  TrainingSession session(graph, options, 2, 13, {}, passes, device);
  TrainingSession::MicroBatch batch;
  for (int64_t i = 0; i < 26; ++i) {
    batch.input_ids.push_back(i * 37 % session.vocabulary());
    batch.labels.push_back(i % 6 == 0 ? -100 : i * 11 % session.vocabulary());
  }
  const StepResult result = session.ComputeGradients({&batch, 1});
  EXPECT_TRUE(result.finite);
  return result.router_loss;
}

// The CPU's are held against PyTorch's routes (tests/optim). Bfloat16 gates have 8 bits: the losses move with them.
TEST_P(EveryExport, RouterLossesOnTheGpuAreTheCpus) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no GPU on this machine";
  const auto graph = LoadFamily(GetParam());
  TrainingOptions options;
  options.router_losses = {.balance = 1, .z = GetParam() == std::string("deepseek_v3") ? 0.0 : 0.1};
  const double cpu = RouterLossOf(*graph, options, DeviceKind::kCpu);
  EXPECT_NEAR(RouterLossOf(*graph, options, DeviceKind::kCuda), cpu, 1e-5 * cpu);
  options.precision = "bfloat16";
  EXPECT_NEAR(RouterLossOf(*graph, options, DeviceKind::kCuda), cpu, 0.05 * cpu);
}

INSTANTIATE_TEST_SUITE_P(Models, EveryExport, testing::ValuesIn(kFamilies),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace weir
