#include "optim/expert_loads.h"

#include <gtest/gtest.h>

#include "backend/cpu/thread_communicator.h"

namespace weir {
namespace {

TEST(ExpertLoads, OfOneRank) {
  const auto loads = LoadsOfAllRanks({{.routes = {6, 1, 1, 0}, .chunks = 2, .helpers = 1}, {.routes = {0, 0}}}, nullptr);
  ASSERT_EQ(loads.size(), 2u);
  EXPECT_DOUBLE_EQ(loads[0].max_over_mean, 3) << "6 of a mean of 2";
  EXPECT_EQ(loads[0].chunks, 2);
  EXPECT_EQ(loads[0].helpers, 1);
  EXPECT_EQ(loads[1].max_over_mean, 0) << "no routes";
}

TEST(ExpertLoads, AreThoseOfAllRanks) {
  RunRanks(3, [](Communicator& world) {
    const int64_t r = world.rank();
    const auto loads = LoadsOfAllRanks({{.routes = {r, 2, 0}, .chunks = 1 + r % 2, .helpers = r}}, &world);
    ASSERT_EQ(loads.size(), 1u);
    EXPECT_EQ(loads[0].routes, (std::vector<int64_t>{3, 6, 0}));
    EXPECT_DOUBLE_EQ(loads[0].max_over_mean, 2);
    EXPECT_EQ(loads[0].chunks, 2);
    EXPECT_EQ(loads[0].helpers, 2);
  });
}

TEST(StepSplits, MeanAndLongestOfEachPart) {
  RunRanks(2, [](Communicator& world) {
    StepSplit own;
    own[StepPart::kForward] = world.rank() == 0 ? 1.0f : 2.0f;
    own[StepPart::kRanks] = world.rank() == 0 ? 1.0f : 0.0f;
    const RankSplits splits = SplitsOfAllRanks(own, &world);
    EXPECT_EQ(splits.mean[StepPart::kForward], 1.5f);
    EXPECT_EQ(splits.longest[StepPart::kForward], 2.0f);
    EXPECT_EQ(splits.mean[StepPart::kRanks], 0.5f);
    EXPECT_EQ(splits.longest[StepPart::kRanks], 1.0f);
  });
}

}  // namespace
}  // namespace weir
