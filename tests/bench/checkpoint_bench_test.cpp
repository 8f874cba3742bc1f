#include "bench/checkpoint_bench.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "backend/cpu/thread_communicator.h"

namespace weir {
namespace {

CheckpointBenchOptions Tiny(int64_t layers) {
  return {.layers = layers, .tokens = 64, .hidden = 32, .products = 2, .dtype = DType::kFloat32, .repeats = 2, .json = true};
}

TEST(CheckpointBench, TimesBoundariesInHostMemoryBesideKeptOnes) {
  for (const int64_t layers : {1, 2, 5}) {
    std::ostringstream out;
    ASSERT_EQ(BenchCheckpoint(Tiny(layers), MakeCpuDevice(std::chrono::microseconds(500)), nullptr, out), 0) << out.str();
    const auto r = nlohmann::json::parse(out.str());
    EXPECT_EQ(r["boundary_bytes"], 64 * 32 * 4);
    EXPECT_EQ(r["host_bytes"], layers * 64 * 32 * 4);
    EXPECT_GT(r["ms"].get<double>(), 0);
    EXPECT_NEAR(r["share_of_step"].get<double>(), r["ms"].get<double>() / r["kept_ms"].get<double>() - 1, 1e-9);
    if (layers == 5) {  // two restored boundaries, whatever the layers
      EXPECT_LT(r["planned_bytes"].get<int64_t>(), r["kept_planned_bytes"].get<int64_t>());
    }
  }
}

TEST(CheckpointBench, RanksPrintOnce) {
  std::ostringstream out[2];
  RunRanks(2, [&](Communicator& world) { EXPECT_EQ(BenchCheckpoint(Tiny(2), MakeCpuDevice(), &world, out[world.rank()]), 0); });
  EXPECT_EQ(nlohmann::json::parse(out[0].str())["ranks"], 2);
  EXPECT_EQ(out[1].str(), "");
  CheckpointBenchOptions table = Tiny(2);
  table.json = false;
  std::ostringstream text;
  EXPECT_EQ(BenchCheckpoint(table, MakeCpuDevice(), nullptr, text), 0);
  EXPECT_NE(text.str().find("% of a step"), std::string::npos) << text.str();
}

}  // namespace
}  // namespace weir
