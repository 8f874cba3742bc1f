#include "optim/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "backend/cpu/parallel.h"
#include "optim/normal_block.h"

namespace weir {
namespace {

struct Draw {
  int64_t element;
  const char* name;
  uint64_t seed;
  double normal;
};

// Another Philox4x32-10 (checked against the known answers of Salmon et al.) and 40 digits (mpmath 1.3): Box-Muller of its words.
constexpr Draw kDraws[] = {
    {0, "w", 42, 1.0728331893035680406},
    {1, "w", 42, -0.3463133878940498236},
    {2, "w", 42, -0.45805297995214351257},
    {3, "w", 42, -1.4571113777855039405},
    {511, "w", 42, -0.2011556338684150817},
    {512, "w", 42, -0.58754049704983144405},
    {777, "layers.0.experts.gate", 7, -0.54037438302980470051},
    {(int64_t{1} << 33) + 5, "w", 42, 0.29183530121471829827},
    {int64_t{1} << 40, "embed", (uint64_t{1} << 63) + 9, 1.1949367541864848955},
    // The extremes of the first 2^21 elements. u = 2.2e-6, the least:
    {1496550, "w", 42, 2.11599388900493188},
    {1496551, "w", 42, -4.6439244469337727958},
    // u = 0.99999917, the most:
    {1138708, "w", 42, -0.0012788122002882755668},
    {1138709, "w", 42, -0.00014714047567777361028},
    // v = 1.8e-6, 0.99999995, 0.25000015, 0.49999993, 0.75000094: next to where one of the two is 0.
    {1862066, "w", 42, 0.79950228308559172924},
    {1862067, "w", 42, 8.907548381836548502e-6},
    {1789610, "w", 42, 1.8116897056543546873},
    {1789611, "w", 42, -5.2278450701380898244e-7},
    {2072778, "w", 42, -1.0778302661218269069e-6},
    {2072779, "w", 42, 1.1597977497631485558},
    {827690, "w", 42, -0.45416584211777120591},
    {827691, "w", 42, 1.9193993026225549015e-7},
    {230530, "w", 42, 9.9854616393728853873e-6},
    {230531, "w", 42, -1.6948624009358999918},
    // u = 0.7071063, next to where m turns; v = 0.12500023, next to where the quarter does.
    {618088, "w", 42, -0.23006451959802822678},
    {618089, "w", 42, 0.80013672004334472642},
    {667734, "w", 42, 0.72933657348252603895},
    {667735, "w", 42, 0.72933868755179836443},
};

float Drawn(const Draw& draw, double mean, double std) {
  float value = 0;
  FillNormal({&value, 1}, draw.element, draw.name, draw.seed, mean, std);
  return value;
}

TEST(Normal, IsThatOf40Digits) {
  for (const Draw& draw : kDraws) {
    const float rounded = Drawn(draw, 0, 1);
    EXPECT_EQ(rounded, static_cast<float>(draw.normal)) << draw.name << " " << draw.element;
    // The digits that float32 drops: the mean takes the leading ones away, in one rounding.
    const double rest = static_cast<double>(Drawn(draw, -0x1p40 * static_cast<double>(rounded), 0x1p40)) * 0x1p-40;
    EXPECT_NEAR(static_cast<double>(rounded) + rest, draw.normal, 1e-13 * std::abs(draw.normal)) << draw.name << " " << draw.element;
  }
}

TEST(Normal, EveryInstructionSetGivesTheSameBits) {
  const auto paths = NormalPaths();
  ASSERT_EQ(paths.back().name, std::string("plain"));
  if (paths.size() == 1) GTEST_SKIP() << "this machine, or this build, has one";
  for (const uint64_t first : {uint64_t{0}, uint64_t{5}, (uint64_t{1} << 32) - 100, (uint64_t{1} << 62) + 3}) {
    for (uint64_t seed = 0; seed < 200; ++seed) {
      const NormalStream stream = {.name = seed * 0x9e3779b97f4a7c15u, .seed = ~(seed << 40), .mean = 0.125, .std = 0.02};
      std::vector<float> want(2 * kNormalPairs), got(want.size());
      paths.back().fill(stream, first, want.data());
      for (const NormalPath& path : paths.first(paths.size() - 1)) {
        path.fill(stream, first, got.data());
        for (size_t i = 0; i < want.size(); ++i) {
          ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i])) << path.name << ", element " << i << " of pair " << first;
        }
      }
    }
  }
}

TEST(Normal, AnyCutAndAnyThreadsGiveTheSameBits) {
  std::vector<float> whole(50000);
  SetCpuThreads(1);
  FillNormal(whole, 0, "w", 42, 0.5, 2);
  for (const int threads : {1, 3, 8}) {
    SetCpuThreads(threads);
    for (const int64_t first : {0, 1, 510, 511, 512, 777}) {
      for (const int64_t size : {0, 1, 2, 511, 512, 513, 30001}) {
        std::vector<float> part(static_cast<size_t>(size) + 2, -7);  // one more before and behind
        FillNormal(std::span(part).subspan(1, static_cast<size_t>(size)), first, "w", 42, 0.5, 2);
        EXPECT_EQ(part.front(), -7);
        EXPECT_EQ(part.back(), -7);
        for (int64_t i = 0; i < size; ++i) ASSERT_EQ(part[static_cast<size_t>(i) + 1], whole[static_cast<size_t>(first + i)]) << first << " " << size << " " << i;
      }
    }
  }
  SetCpuThreads(0);
}

// Of a million: moments and tails within five standard deviations of theirs.
TEST(Normal, HasTheMomentsAndTailsOfOne) {
  std::vector<float> values(1000000);
  FillNormal(values, 0, "w", 1, 0, 1);
  const double n = static_cast<double>(values.size());
  double moments[5] = {}, neighbours = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double x = static_cast<double>(values[i]);
    for (int k = 1; k <= 4; ++k) moments[k] += std::pow(x, k) / n;
    neighbours += x * static_cast<double>(values[i ^ 1]) / n;
  }
  EXPECT_NEAR(moments[1], 0, 5 / std::sqrt(n));
  EXPECT_NEAR(moments[2], 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(moments[3], 0, 5 * std::sqrt(15 / n));
  EXPECT_NEAR(moments[4], 3, 5 * std::sqrt(96 / n));
  EXPECT_NEAR(neighbours, 0, 5 * std::sqrt(2 / n)) << "of the two of one pair, each counted twice";
  for (const double limit : {-4.0, -3.0, -2.0, -1.0, -0.1, 0.0, 0.5, 1.5, 2.5, 3.5}) {
    const double p = 0.5 * std::erfc(-limit / std::sqrt(2.0));
    const auto below = std::count_if(values.begin(), values.end(), [&](float x) { return static_cast<double>(x) < limit; });
    EXPECT_NEAR(static_cast<double>(below), n * p, 5 * std::sqrt(n * p * (1 - p))) << limit;
  }
}

}  // namespace
}  // namespace weir
