// Float32 masters as two halves: every one comes back, and the upper half is the bfloat16 that a Cast makes.
#include "graph/split_master.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <limits>

#include "graph/dtype.h"

namespace weir {
namespace {

bool IsNan(uint32_t bits) { return (bits & 0x7fffffffu) > 0x7f800000u; }
constexpr uint32_t kQuiet = 0x00400000u;

// 0: all is well.
int Wrong(uint32_t bits) {
  const SplitBits halves = SplitMaster(bits);
  const uint32_t want = IsNan(bits) ? bits | kQuiet : bits;
  return (JoinMaster(halves.high, halves.low, halves.tie) != want) + (halves.high != FloatToBFloat16(std::bit_cast<float>(bits))) +
         (halves.tie > 1 || (halves.tie == 1 && halves.low != 0x8000u));
}

// All upper halves with the lower ones around the tie; all lower halves with uppers of every kind. WEIR_SLOW=1: all of both.
TEST(SplitMaster, BringsBackEveryFloat) {
  const bool all = std::getenv("WEIR_SLOW") != nullptr;
  int64_t wrong = 0;
  for (uint32_t upper = 0; upper <= 0xffffu; ++upper) {
    const bool whole = all || upper % 251 == 0 || (upper & 0x7fffu) < 3 || (upper & 0x7fffu) - 0x7f7eu < 4;
    if (whole) {
      for (uint32_t low = 0; low <= 0xffffu; ++low) wrong += Wrong(upper << 16 | low);
    } else {
      for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) wrong += Wrong(upper << 16 | low);
    }
  }
  EXPECT_EQ(wrong, 0);
}

TEST(SplitMaster, SplitsByHand) {
  const auto expect = [](uint32_t bits, uint16_t high, uint16_t low, uint32_t tie) {
    const SplitBits halves = SplitMaster(bits);
    EXPECT_EQ(halves.high, high) << std::hex << bits;
    EXPECT_EQ(halves.low, low) << std::hex << bits;
    EXPECT_EQ(halves.tie, tie) << std::hex << bits;
    EXPECT_EQ(JoinMaster(high, low, tie), bits) << std::hex << bits;
  };
  expect(0x3f800000, 0x3f80, 0x0000, 0);  // 1
  expect(0x80000000, 0x8000, 0x0000, 0);  // -0
  expect(0x3f807fff, 0x3f80, 0x7fff, 0);  // below the middle
  expect(0x3f808001, 0x3f81, 0x8001, 0);  // above it
  expect(0x3f808000, 0x3f80, 0x8000, 0);  // ties go to the even upper half, down
  expect(0x3f818000, 0x3f82, 0x8000, 1);  // or up: the same high and low as
  expect(0x3f828000, 0x3f82, 0x8000, 0);  // this one's
  expect(0xbf818000, 0xbf82, 0x8000, 1);  // negative alike
  expect(0x00008001, 0x0001, 0x8001, 0);  // subnormal, from 0 up
  expect(0x80018000, 0x8002, 0x8000, 1);
  expect(0x7f7fffff, 0x7f80, 0xffff, 0);  // the largest number's bfloat16 is infinity
  expect(0x7f7f8000, 0x7f80, 0x8000, 1);
  expect(0x7f800000, 0x7f80, 0x0000, 0);  // infinity
  expect(0xff800000, 0xff80, 0x0000, 0);
  expect(0x7fc08001, 0x7fc0, 0x8001, 0);  // a quiet NaN keeps all of its bits
}

TEST(SplitMaster, SignallingNansBecomeQuiet) {
  const SplitBits halves = SplitMaster(0x7f808000);
  EXPECT_EQ(JoinMaster(halves.high, halves.low, halves.tie), 0x7fc08000u);
}

TEST(SplitMaster, TheTieRidesInTheSignOfV) {
  for (const float v : {0.0f, 1e-40f, 0.5f, std::numeric_limits<float>::infinity()}) {
    const auto bits = std::bit_cast<uint32_t>(v);
    for (const uint32_t tie : {0u, 1u}) {
      EXPECT_EQ(TieOf(WithTie(bits, tie)), tie);
      EXPECT_EQ(WithoutTie(WithTie(bits, tie)), bits);
      EXPECT_EQ(WithTie(WithTie(bits, 1 - tie), tie), WithTie(bits, tie));
    }
  }
}

}  // namespace
}  // namespace weir
