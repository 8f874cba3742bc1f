#include "bench/machine_bench.h"

#include <gtest/gtest.h>

#include <set>

#include "backend/cpu/thread_communicator.h"

namespace weir {
namespace {

const MachineBenchOptions kTiny = {.dtype = DType::kFloat32, .gemm = {32, 32, 32}, .attention = {16, 2, 2, 8}, .experts = {16, 4, 2, 8, 8},
                                   .bytes = 4096, .repeats = 2};

// The names that `weir plan --machine` knows (cli/step_cost.cpp).
const std::set<std::string> kNames = {"gemm_flops",       "attention_flops", "attention_backward_flops", "experts_flops",
                                      "experts_backward_flops", "memory_bandwidth", "h2d", "d2h"};

std::set<std::string> NamesOf(const std::vector<std::pair<std::string, double>>& rates) {
  std::set<std::string> names;
  for (const auto& [name, rate] : rates) {
    EXPECT_GT(rate, 0) << name;
    names.insert(name);
  }
  return names;
}

TEST(MachineBench, MeasuresWhatThePlanReads) {
  const auto device = MakeCpuDevice();
  EXPECT_EQ(NamesOf(MeasureMachine(kTiny, *device, nullptr)), kNames);
}

TEST(MachineBench, RanksAgreeOnTheSlowestAndMeasureTheirLink) {
  std::vector<std::pair<std::string, double>> rates[2];
  RunRanks(2, [&](Communicator& world) {
    const auto device = MakeCpuDevice();
    rates[world.rank()] = MeasureMachine(kTiny, *device, &world);
  });
  EXPECT_EQ(rates[0], rates[1]);
  std::set<std::string> names = kNames;
  names.insert("link");
  EXPECT_EQ(NamesOf(rates[0]), names);
}

}  // namespace
}  // namespace weir
