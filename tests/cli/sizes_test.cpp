#include "cli/sizes.h"

#include <gtest/gtest.h>

#include "graph/error.h"

namespace weir {
namespace {

TEST(Sizes, ParsesBinaryAndDecimalUnits) {
  EXPECT_EQ(ParseBytes("4096"), 4096);
  EXPECT_EQ(ParseBytes("80GiB"), int64_t{80} << 30);
  EXPECT_EQ(ParseBytes("1.5 GB"), 1500000000);
  EXPECT_EQ(ParseBytes("2TiB"), int64_t{2} << 40);
  EXPECT_EQ(ParseBytes("0"), 0);
}

TEST(Sizes, RefusesWhatIsNotASize) {
  for (const char* text : {"", "GiB", "80gib", "-1GiB", "8 0", "1e30TiB", "nan"}) EXPECT_THROW(ParseBytes(text), Error) << text;
}

TEST(Sizes, FormatsInTheLargestFittingUnit) {
  EXPECT_EQ(FormatBytes(512), "512 bytes");
  EXPECT_EQ(FormatBytes(int64_t{3} << 29), "1.5 GiB");
}

}  // namespace
}  // namespace weir
