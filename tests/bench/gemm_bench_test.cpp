#include "bench/gemm_bench.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "backend/cpu/parallel.h"
#include "bench/blas_peer.h"

namespace weir {
namespace {

TEST(GemmBench, JsonNumbersAgreeWithEachOther) {
  std::ostringstream out;
  const GemmBenchOptions options{
      .sizes = {{33, 40, 50}, {8, 16, 300}}, .transpose_b = true, .threads = 1, .json = true};
  EXPECT_EQ(BenchGemm(options, out), 0);
  SetCpuThreads(0);
  const auto json = nlohmann::json::parse(out.str());
  EXPECT_EQ(json["threads"], 1);
  ASSERT_EQ(json["results"].size(), 2u);
  for (const auto& r : json["results"]) {
    const double flop = 2 * r["m"].get<double>() * r["n"].get<double>() * r["k"].get<double>();
    EXPECT_NEAR(r["tflops"].get<double>() * r["ms"].get<double>() * 1e9, flop, flop * 1e-3);
    if (!BlasPeer(1).found()) {
      EXPECT_FALSE(r.contains("peer_ms"));
      continue;
    }
    EXPECT_TRUE(r["agree"]);
    const double ratio = r["peer_ms"].get<double>() / r["ms"].get<double>();
    EXPECT_NEAR(r["ratio"].get<double>(), ratio, ratio * 1e-3);
  }
}

TEST(GemmBench, TableNamesThePeerOrSaysItIsNotFound) {
  std::ostringstream out;
  EXPECT_EQ(BenchGemm({.sizes = {{5, 6, 7}}, .transpose_a = true}, out), 0);
  EXPECT_NE(out.str().find("peer: " + BlasPeer(CpuThreads()).name()), std::string::npos)
      << out.str();
}

}  // namespace
}  // namespace weir
