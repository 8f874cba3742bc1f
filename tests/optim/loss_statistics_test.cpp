#include "optim/loss_statistics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace weir {
namespace {

TEST(LossStatistics, MeanAndVarianceByHand) {
  LossStatistics losses;
  losses.Add(1);
  losses.Add(3);
  EXPECT_EQ(losses.mean, 2);
  EXPECT_EQ(losses.variance, 1);
  losses.Add(5);
  EXPECT_NEAR(losses.mean, 3, 1e-15);
  EXPECT_NEAR(losses.variance, 8.0 / 3, 1e-15);  // (4 + 0 + 4) / 3
}

TEST(LossStatistics, ForgetsWhatIsLongPast) {
  LossStatistics losses;
  for (int i = 0; i < 1000; ++i) losses.Add(5);
  for (int i = 0; i < 10 * LossStatistics::kWindow; ++i) losses.Add(2);
  EXPECT_NEAR(losses.mean, 2, 3 * std::exp(-9.9));
}

TEST(LossStatistics, ASkippedSpikeDoesNotMoveTheMean_NUM04) {
  LossStatistics losses;
  for (int i = 0; i < 40; ++i) {
    EXPECT_FALSE(losses.IsSpike(i % 2 == 0 ? 0.9 : 1.1, 3)) << i;
    losses.Add(i % 2 == 0 ? 0.9 : 1.1);
  }
  EXPECT_TRUE(losses.IsSpike(100, 3));
  EXPECT_TRUE(losses.IsSpike(1.31, 3));   // mean 1, deviation 0.1
  EXPECT_FALSE(losses.IsSpike(1.29, 3));
  EXPECT_FALSE(losses.IsSpike(-100, 3)) << "a loss that falls is welcome";
  EXPECT_FALSE(losses.IsSpike(100, 0)) << "off";
}

// NUM-04: 1, 1, 1, 100, 1 where a spike is skipped: the mean stays 1, and the 1 after it is none.
TEST(LossStatistics, ASkippedLossIsNotInTheMean) {
  LossStatistics losses;
  for (int64_t i = 0; i < LossStatistics::kLeast; ++i) losses.Add(1);
  for (const double loss : {1.0, 1.0, 1.0, 100.0, 1.0}) {
    const bool spike = losses.IsSpike(loss, 3);
    EXPECT_EQ(spike, loss == 100);
    if (!spike) losses.Add(loss);
    EXPECT_EQ(losses.mean, 1);
    EXPECT_EQ(losses.variance, 0);
  }
}

TEST(LossStatistics, KnowsTooLittleAtFirst) {
  LossStatistics losses;
  for (int64_t i = 0; i + 1 < LossStatistics::kLeast; ++i) losses.Add(1 + 0.01 * static_cast<double>(i % 2));
  EXPECT_FALSE(losses.IsSpike(1e9, 1));
  losses.Add(1);
  EXPECT_TRUE(losses.IsSpike(1e9, 1));
}

}  // namespace
}  // namespace weir
