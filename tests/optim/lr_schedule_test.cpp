#include "optim/lr_schedule.h"

#include <gtest/gtest.h>

#include "graph/error.h"

namespace weir {
namespace {

TEST(LearningRateSchedule, WarmsUpLinearlyAndReachesPeakOnTheLastWarmupStep) {
  const LearningRateSchedule schedule{"cosine", 3e-3, 3e-4, 5, 30, 0};
  EXPECT_DOUBLE_EQ(schedule.At(0), 3e-3 / 5);
  EXPECT_DOUBLE_EQ(schedule.At(4), 3e-3);
  EXPECT_DOUBLE_EQ(schedule.At(5), 3e-3);
}

TEST(LearningRateSchedule, CosineIsHalfWayAtTheMiddleAndMinimumAtTheEnd) {
  const LearningRateSchedule schedule{"cosine", 1.0, 0.2, 0, 10, 0};
  EXPECT_NEAR(schedule.At(5), 0.6, 1e-15);
  EXPECT_NEAR(schedule.At(10), 0.2, 1e-15);
  EXPECT_NEAR(schedule.At(1000), 0.2, 1e-15);
}

TEST(LearningRateSchedule, WsdHoldsThePeakThenFallsLinearly) {
  const LearningRateSchedule schedule{"wsd", 1.0, 0.0, 2, 20, 4};
  EXPECT_DOUBLE_EQ(schedule.At(2), 1.0);
  EXPECT_DOUBLE_EQ(schedule.At(16), 1.0);
  EXPECT_DOUBLE_EQ(schedule.At(18), 0.5);
  EXPECT_DOUBLE_EQ(schedule.At(20), 0.0);
}

TEST(LearningRateSchedule, LinearAndConstant) {
  EXPECT_DOUBLE_EQ((LearningRateSchedule{"linear", 1.0, 0.5, 0, 4, 0}).At(2), 0.75);
  EXPECT_DOUBLE_EQ((LearningRateSchedule{"constant", 0.1, 0, 0, 4, 0}).At(3), 0.1);
}

TEST(LearningRateSchedule, RefusesUnknownKindAndImpossibleLengths) {
  EXPECT_THROW((LearningRateSchedule{"cosin", 1, 0, 0, 4, 0}).Validate(), Error);
  EXPECT_THROW((LearningRateSchedule{"cosine", 1, 0, 5, 4, 0}).Validate(), Error);
  EXPECT_THROW((LearningRateSchedule{"wsd", 1, 0, 0, 4, 5}).Validate(), Error);
  EXPECT_THROW((LearningRateSchedule{"linear", -1, 0, 0, 4, 0}).Validate(), Error);
}

}  // namespace
}  // namespace weir
