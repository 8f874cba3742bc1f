#include "backend/step_split.h"

#include <gtest/gtest.h>

#include <thread>

#include "backend/plan.h"
#include "graph/op_schema.h"
#include "graph/text.h"

namespace weir {
namespace {

constexpr const char* kText = R"(graph small (float[4,3] x, int64[4] labels, float[] scale, float[6,3] w) => (double[] loss, float[4,6] d)
{
  logits = Linear(x, w)
  loss, lse = CrossEntropy(logits, labels, scale)
  y = Mul(x, x)
  d = Sub(logits, logits)
}
)";

TEST(StepSplit, PartsFollowOpsThenPhases) {
  const auto graph = ParseText(kText);
  const Plan plan = MakePlan(*graph, DeviceKind::kCpu);
  const auto parts = PartsOf(plan);
  ASSERT_EQ(parts.size(), plan.steps.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string op = plan.steps[i].node->op();
    EXPECT_EQ(parts[i], op == "Linear" || op == "CrossEntropy" ? StepPart::kHead : StepPart::kForward) << op;
  }
}

// Time passes within runs alone, and all of it is told once.
TEST(StepSplit, SumsToTheTimeOfTheRuns) {
  const auto graph = ParseText(kText);
  const Plan plan = MakePlan(*graph, DeviceKind::kCpu);
  Executor executor(plan, {.watch = true});
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 200; ++i) executor.Run(Phase::kForward);
  const std::chrono::duration<float> ran = std::chrono::steady_clock::now() - start;
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  executor.Run(Phase::kForward);
  const StepSplit split = executor.TakeSplit();
  EXPECT_GT(split[StepPart::kHead], 0);
  EXPECT_GT(split[StepPart::kForward], 0);
  EXPECT_EQ(split.Sum(), split[StepPart::kHead] + split[StepPart::kForward]);
  EXPECT_LT(split.Sum(), ran.count() + 0.02f) << "the pause is no part of a run";
  EXPECT_EQ(executor.TakeSplit().Sum(), 0);
}

TEST(StepSplit, IsNotKeptUnasked) {
  const auto graph = ParseText(kText);
  const Plan plan = MakePlan(*graph, DeviceKind::kCpu);
  Executor executor(plan);
  executor.Run(Phase::kForward);
  EXPECT_EQ(executor.TakeSplit().Sum(), 0);
}

TEST(ExpertLoad, LaterMicroBatchesAddTheirRoutes) {
  std::vector<ExpertLoad> layers;
  TellExpertLoad({.routes = {9, 9}});  // nobody collects
  for (int micro = 0; micro < 2; ++micro) {
    const ExpertLoadCollector collector(layers);
    TellExpertLoad({.routes = {1, 2}, .chunks = 3 - micro, .helpers = micro});
    TellExpertLoad({.routes = {4, 0}});
  }
  TellExpertLoad({.routes = {9, 9}});
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_EQ(layers[0].routes, (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(layers[0].chunks, 3);
  EXPECT_EQ(layers[0].helpers, 1);
  EXPECT_EQ(layers[1].routes, (std::vector<int64_t>{8, 0}));
}

}  // namespace
}  // namespace weir
