#include "graph/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace weir {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Bit patterns from IEEE 754-2008, binary16.
TEST(DType, HalfHasItsKnownPatterns) {
  const std::pair<uint16_t, float> known[] = {
      {0x0000, 0.0f},    {0x8000, -0.0f},     {0x3c00, 1.0f},           {0xc000, -2.0f},
      {0x7bff, 65504},   {0x0400, 0x1p-14f},  {0x0001, 0x1p-24f},       {0x03ff, 0x1.ff8p-15f},
      {0x3555, 0x1.554p-2f}, {0x7c00, kInf},  {0xfc00, -kInf},          {0x8001, -0x1p-24f}};
  for (const auto& [bits, value] : known) {
    EXPECT_EQ(std::bit_cast<uint32_t>(HalfToFloat(bits)), std::bit_cast<uint32_t>(value)) << std::hex << bits;
    EXPECT_EQ(FloatToHalf(value), bits) << value;
  }
}

TEST(DType, HalfRoundsToNearestEven) {
  EXPECT_EQ(FloatToHalf(1 + 0x1p-11f), 0x3c00);          // tie: even below
  EXPECT_EQ(FloatToHalf(1 + 0x3p-11f), 0x3c02);          // tie: even above
  EXPECT_EQ(FloatToHalf(1 + 0x1.01p-11f), 0x3c01);       // past the tie
  EXPECT_EQ(FloatToHalf(0x1p-25f), 0x0000);              // tie with zero
  EXPECT_EQ(FloatToHalf(0x1.8p-24f), 0x0002);            // subnormal tie
  EXPECT_EQ(FloatToHalf(std::nextafter(0x1p-14f, 0.0f)), 0x0400);  // subnormal to normal
  EXPECT_EQ(FloatToHalf(65519), 0x7bff);
  EXPECT_EQ(FloatToHalf(65520), 0x7c00);
  EXPECT_EQ(FloatToHalf(-1e30f), 0xfc00);
}

TEST(DType, EveryHalfAndBFloat16SurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = HalfToFloat(static_cast<uint16_t>(bits));
    const auto brain = BFloat16ToFloat(static_cast<uint16_t>(bits));
    if (std::isnan(half)) {
      EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(half))));
    } else {
      ASSERT_EQ(FloatToHalf(half), bits);
    }
    if (std::isnan(brain)) {
      EXPECT_TRUE(std::isnan(BFloat16ToFloat(FloatToBFloat16(brain))));
    } else {
      ASSERT_EQ(FloatToBFloat16(brain), bits);
    }
  }
}

TEST(DType, BFloat16RoundsToNearestEven) {
  EXPECT_EQ(FloatToBFloat16(1), 0x3f80);
  EXPECT_EQ(FloatToBFloat16(-2.5f), 0xc020);
  EXPECT_EQ(FloatToBFloat16(1 + 0x1p-8f), 0x3f80);
  EXPECT_EQ(FloatToBFloat16(1 + 0x3p-8f), 0x3f82);
  EXPECT_EQ(FloatToBFloat16(std::numeric_limits<float>::max()), 0x7f80);
  // A NaN whose payload sits in the lost bits must not become infinity.
  EXPECT_TRUE(std::isnan(BFloat16ToFloat(FloatToBFloat16(std::bit_cast<float>(0x7f800001u)))));
}

TEST(DType, NamesAndSizes) {
  for (int i = 0; i <= static_cast<int>(DType::kBool); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(DTypeFromName(DTypeName(dtype)), dtype);
  }
  EXPECT_EQ(DTypeFromName("floatt"), DType::kUndefined);
  EXPECT_EQ(BytesOf(DType::kInt4, 5), 3);
  EXPECT_EQ(BytesOf(DType::kFloat64, 3), 24);
  EXPECT_EQ(BytesOf(DType::kBool, 7), 7);
  EXPECT_EQ(BytesOf(DType::kFloat32, int64_t{1} << 40), int64_t{1} << 42);
}

}  // namespace
}  // namespace weir
