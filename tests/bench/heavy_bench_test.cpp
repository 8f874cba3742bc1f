#include "bench/heavy_bench.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

namespace weir {
namespace {

struct Expected {
  const char* subject;
  std::vector<int64_t> shape;
  std::vector<double> flops;  // of each node, by hand
};

// The same nodes run on the CPU: time and TFLOP/s of every node agree with flop counts made by
// hand.
TEST(HeavyBench, JsonNumbersAgreeWithHandCounts) {
  // Causal attention of 6 tokens: 21 pairs per head; experts: 6 H I per route; the head: 8 N H V,
  // whole in one strip 6.
  for (const Expected& e :
       {Expected{"gemm", {5, 7, 9}, {2. * 5 * 7 * 9, 2. * 5 * 7 * 9}},
        Expected{"attention", {6, 2, 1, 8}, {2. * 2 * 21 * 16, 5. * 2 * 21 * 16}},
        Expected{"attention_rows", {12, 4, 3, 2, 1, 8}, {2. * 2 * 26 * 16, 5. * 2 * 26 * 16}},  // positions 0 1 10 11
        Expected{"experts", {10, 4, 2, 16, 8}, {6. * 20 * 16 * 8, 16. * 20 * 16 * 8}},
        Expected{"head", {10, 16, 300}, {6. * 10 * 16 * 300, 6. * 10 * 16 * 300}}}) {
    std::ostringstream out;
    EXPECT_EQ(BenchHeavy({.subject = e.subject,
                          .device = DeviceKind::kCpu,
                          .dtype = DType::kFloat32,
                          .shapes = {e.shape},
                          .peer = "",
                          .json = true},
                         out),
              0);
    const auto json = nlohmann::json::parse(out.str());
    EXPECT_EQ(json["subject"], e.subject);
    ASSERT_EQ(json["results"].size(), e.flops.size()) << e.subject;
    for (size_t i = 0; i < e.flops.size(); ++i) {
      const auto& r = json["results"][i];
      EXPECT_EQ(r["shape"].get<std::vector<int64_t>>(), e.shape);
      EXPECT_NEAR(r["tflops"].get<double>() * r["ms"].get<double>() * 1e9, e.flops[i],
                  e.flops[i] * 1e-3)
          << e.subject;
      EXPECT_FALSE(r.contains("peer_ms"));
    }
  }
}

TEST(HeavyBench, APeerThatFailsFailsTheBench) {
  std::ostringstream out;
  EXPECT_EQ(BenchHeavy({.subject = "gemm",
                        .device = DeviceKind::kCpu,
                        .dtype = DType::kFloat32,
                        .shapes = {{4, 4, 4}},
                        .peer = "/nowhere/peer.py"},
                       out),
            1);
  EXPECT_NE(out.str().find("forward"), std::string::npos)
      << "our own times are printed all the same";
}

TEST(HeavyBench, UnknownSubjectsHaveNoShape) {
  EXPECT_EQ(ShapeNames("attention"), "N,heads,kv_heads,channels");
  EXPECT_EQ(ShapeNames("rows"), "");
}

}  // namespace
}  // namespace weir
