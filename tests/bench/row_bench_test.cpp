#include "bench/row_bench.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

namespace weir {
namespace {

TEST(RowBench, JsonNumbersAgreeWithEachOther) {
  std::ostringstream out;
  EXPECT_EQ(BenchRows({.tokens = 16, .repeats = 1, .json = true}, out), 0);
  const auto json = nlohmann::json::parse(out.str());
  EXPECT_EQ(json["device"], "cpu");
  ASSERT_GE(json["results"].size(), 10u);
  EXPECT_EQ(json["results"][0]["op"], "copy");
  EXPECT_EQ(json["results"][0]["bytes"], 2 * 16 * 4096 * 4);
  for (const auto& r : json["results"]) {
    const double bytes = r["bytes"].get<double>();
    EXPECT_NEAR(r["gb_per_s"].get<double>() * r["ms"].get<double>() * 1e6, bytes, bytes * 1e-3) << r["op"];
  }
}

TEST(RowBench, TableNamesEveryOp) {
  std::ostringstream out;
  EXPECT_EQ(BenchRows({.tokens = 16, .repeats = 1}, out), 0);
  for (const char* op : {"copy", "RmsNorm", "AdamW", "Rotary", "TopK"})
    EXPECT_NE(out.str().find(op), std::string::npos) << op;
}

}  // namespace
}  // namespace weir
