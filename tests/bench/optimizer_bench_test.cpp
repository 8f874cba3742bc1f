#include "bench/optimizer_bench.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "backend/cpu/thread_communicator.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

OptimizerBenchOptions Tiny() {
  return {.parameters = 6000, .tensors = 3, .offload = {.bucket = 700, .slots = 2, .resident = 0}, .repeats = 2, .peer = "", .json = true};
}

TEST(OptimizerBench, TimesStreamedBesideResidentAndCopies) {
  std::ostringstream out;
  ASSERT_EQ(BenchOptimizer(Tiny(), MakeCpuDevice(), nullptr, out), 0) << out.str();
  const auto r = nlohmann::json::parse(out.str());
  EXPECT_EQ(r["streamed"], 6000);
  for (const char* name : {"ms", "twin_ms", "floor_ms", "of_floor", "gb_per_s_each_way"}) EXPECT_GT(r[name].get<double>(), 0) << name;
  // 3 x 2000 elements: 16 bytes each on the device, or 6 and a ring of 2 x 700 x 10; 256 bytes of alignment a buffer.
  EXPECT_NEAR(r["twin_bytes"].get<double>(), 16 * 6000, 5000);
  EXPECT_NEAR(r["planned_bytes"].get<double>(), 6 * 6000 + 14000, 3000);
  EXPECT_NEAR(r["host_bytes"].get<double>(), 10 * 6000, 3000);
}

TEST(OptimizerBench, ResidentStateIsNotStreamed) {
  OptimizerBenchOptions options = Tiny();
  options.offload.resident = 25000;  // one tensor's 20,000
  std::ostringstream out;
  ASSERT_EQ(BenchOptimizer(options, MakeCpuDevice(), nullptr, out), 0);
  EXPECT_EQ(nlohmann::json::parse(out.str())["streamed"], 4000);
  options.offload.resident = 1 << 20;
  std::ostringstream none;
  ASSERT_EQ(BenchOptimizer(options, MakeCpuDevice(), nullptr, none), 0);
  EXPECT_EQ(nlohmann::json::parse(none.str())["streamed"], 0);
}

TEST(OptimizerBench, RanksPrintOnce) {
  std::ostringstream out[2];
  RunRanks(2, [&](Communicator& world) { EXPECT_EQ(BenchOptimizer(Tiny(), MakeCpuDevice(), &world, out[world.rank()]), 0); });
  EXPECT_EQ(nlohmann::json::parse(out[0].str())["ranks"], 2);
  EXPECT_EQ(out[1].str(), "");
}

TEST(OptimizerBench, PutsThePeerBeside) {
  const fs::path script = fs::path(testing::TempDir()) / ("weir_peer_" + std::to_string(getpid()) + ".py");
  std::ofstream(script) << "import sys\nassert sys.argv[1:] == ['cpu', '6000'], sys.argv\nprint('adamw|0.5')\n";
  OptimizerBenchOptions options = Tiny();
  options.peer = script.string();
  std::ostringstream out;
  ASSERT_EQ(BenchOptimizer(options, MakeCpuDevice(), nullptr, out), 0);
  const auto r = nlohmann::json::parse(out.str());
  EXPECT_EQ(r["peer"]["adamw_ms"], 500.0);
  EXPECT_NEAR(r["peer"]["adamw_ratio"].get<double>(), 500 / r["ms"].get<double>(), 1e-6 * 500 / r["ms"].get<double>());
  options.json = false;
  std::ostringstream table;
  EXPECT_EQ(BenchOptimizer(options, MakeCpuDevice(), nullptr, table), 0);
  EXPECT_NE(table.str().find("peer adamw_ms 500.00"), std::string::npos) << table.str();
  options.peer = script.string() + ".missing";
  std::ostringstream failed;
  EXPECT_EQ(BenchOptimizer(options, MakeCpuDevice(), nullptr, failed), 1);
  fs::remove(script);
}

}  // namespace
}  // namespace weir
