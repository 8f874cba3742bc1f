#include "bench/dispatch_bench.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "backend/cpu/thread_communicator.h"
#include "graph/error.h"
#include "graph/layout.h"

namespace weir {
namespace {

DispatchBenchOptions Small(double skew) {
  return {.tokens = 96,
          .hidden = 16,
          .expert_width = 8,
          .experts = 8,
          .top_k = 2,
          .skew = skew,
          .hot_experts = 2,
          .expert_parallel = 2,
          .leaves = 4,
          .unit_rows = 16,
          .chunk_tokens = 24,
          .min_rows = 4,
          .dtype = DType::kFloat32,
          .repeats = 2};
}

std::vector<DispatchTiming> RunOnTwoRanks(const DispatchBenchOptions& options) {
  std::vector<DispatchTiming> timings;
  RunRanks(2, [&](Communicator& world) {
    world.SetLayout({.world = 2, .expert_parallel = 2});
    const auto own = TimeDispatch(options, MakeCpuDevice(), &world);
    if (world.rank() == 0) timings = own;
  });
  return timings;
}

TEST(SyntheticRoute, GivesHotExpertsTheirShareAndOthersTheRest) {
  const DispatchBenchOptions options{
      .tokens = 20000, .experts = 16, .top_k = 2, .skew = 80, .hot_experts = 2};
  std::vector<double> share(16);
  for (int64_t token = 0; token < options.tokens; ++token) {
    for (int64_t slot = 0; slot < 2; ++slot)
      share[static_cast<size_t>(SyntheticRoute(options, 1, token, slot))] += 1.0 / 40000;
  }
  // Four standard deviations of a share p of 40,000 draws.
  for (size_t e = 0; e < 16; ++e) {
    const double p = e < 2 ? 0.4 : 0.2 / 14;
    EXPECT_NEAR(share[e], p, 4 * std::sqrt(p * (1 - p) / 40000)) << e;
  }
}

TEST(SyntheticRoute, IsBalancedInEveryLeaf) {
  const DispatchBenchOptions options{.tokens = 128, .experts = 8, .top_k = 2, .leaves = 16};
  std::vector<std::vector<int>> counts(16, std::vector<int>(8));
  for (int64_t token = 0; token < 128; ++token) {
    for (int64_t slot = 0; slot < 2; ++slot)
      ++counts[static_cast<size_t>(token % 16)]
              [static_cast<size_t>(SyntheticRoute(options, 0, token, slot))];
  }
  for (const auto& leaf : counts) EXPECT_EQ(leaf, std::vector<int>(8, 2));
}

// Balanced: half of a rank's 192 rows go away and as many come to be sent home, 16 floats each;
// counts of 4 leaves and 8 experts once. Backward: x, dy and a weight go, dx and a weight return.
TEST(DispatchBench, CountsWhatLeavesARank) {
  const auto timings = RunOnTwoRanks(Small(0));
  ASSERT_EQ(timings.size(), 3u);
  for (const DispatchTiming& t : timings) {
    EXPECT_EQ(t.forward_sent, 2 * 96 * 16 * 4 + 4 * 8 * 8) << t.name;
    EXPECT_EQ(t.both_sent - t.forward_sent, 96 * 4 * (3 * 16 + 2)) << t.name;
    EXPECT_EQ(t.load, 1) << t.name;
    EXPECT_GT(t.both_s, 0);
  }
  EXPECT_EQ(timings[0].chunks, 1);
  EXPECT_EQ(timings[2].chunks, 4);
  EXPECT_LT(timings[2].arena, timings[1].arena);
}

TEST(DispatchBench, LendsExpertsUnderSkew) {
  const auto timings = RunOnTwoRanks(Small(90));
  EXPECT_GT(timings[0].load, 1.5);
  EXPECT_LT(timings[1].load, 1.3);
  EXPECT_EQ(timings[0].borrowed, 0);
  EXPECT_GT(timings[2].borrowed, 0);
}

TEST(DispatchBench, JsonSaysWhatDidNotFit) {
  DispatchTiming good{.name = "pipelined",
                      .forward_fits = true,
                      .backward_fits = true,
                      .forward_s = 0.5,
                      .both_s = 2,
                      .arena = 77};
  const DispatchTiming bad{.name = "plain", .refusal = "needs more"};
  std::ostringstream out;
  DispatchBenchOptions options = Small(0);
  options.json = true;
  PrintDispatch(options, {bad, good}, DeviceKind::kCpu, 2, out);
  const auto json = nlohmann::json::parse(out.str());
  EXPECT_EQ(json["results"][0]["does_not_fit"], "needs more");
  EXPECT_FALSE(json["results"][0].contains("forward_ms"));
  EXPECT_EQ(json["results"][1]["forward_ms"], 500);
  EXPECT_EQ(json["results"][1]["arena"], 77);
  // 6 H I flop per route of 192, in half a second.
  EXPECT_DOUBLE_EQ(json["results"][1]["forward_tflops"].get<double>(),
                   6. * 16 * 8 * 192 / 0.5 * 1e-12);
  options.json = false;
  PrintDispatch(options, {bad, good}, DeviceKind::kCpu, 2, out);
  EXPECT_NE(out.str().find("no room"), std::string::npos);
}

}  // namespace
}  // namespace weir
