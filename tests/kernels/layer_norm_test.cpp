#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/op_harness.h"
#include "tests/kernels/run_op.h"

namespace weir {
namespace {

// Rows 1 2 3 4: mean 2.5, variance 1.25.
TEST(LayerNorm, MatchesHandArithmetic) {
  const auto y =
      RunOp("LayerNormalization",
            {Floats({1, 4}, {1, 2, 3, 4}), Floats({4}, {1, 1, 2, 1}), Floats({4}, {0, 0, 0, 5})}, 3,
            {{"epsilon", 0.0}});
  const double r = 1 / std::sqrt(1.25);
  EXPECT_NEAR(y[0].f[0], -1.5 * r, 1e-6);
  EXPECT_NEAR(y[0].f[2], 2 * 0.5 * r, 1e-6);
  EXPECT_NEAR(y[0].f[3], 1.5 * r + 5, 1e-6);
  EXPECT_FLOAT_EQ(y[1].f[0], 2.5f);
  EXPECT_NEAR(y[2].f[0], r, 1e-6);
  EXPECT_EQ(y[1].dims, (Dims{1, 1}));
}

// IMP-17: the backward derives the statistics itself, so optional outputs change nothing.
TEST(LayerNorm, OneAndThreeOutputsGiveEqualGradients_IMP17) {
  std::vector<std::vector<Array<float>>> results;
  for (const int outputs : {1, 3}) {
    const OpCase op_case{"n", {{.dims = {5, 37}}, {.dims = {37}}, {.dims = {37}}}, {}, outputs};
    const auto graph = MakeOpGraph(GetOp("LayerNormalization"), op_case, true, false);
    std::vector<std::pair<Value*, Array<float>>> feeds;
    const auto drawn = DrawInputs(op_case, 1);
    for (size_t i = 0; i < drawn.size(); ++i)
      feeds.push_back({graph->inputs[i], Convert<float>(drawn[i])});
    for (Value* dy : graph->output_gradients) feeds.push_back({dy, Normal({5, 37}, 9)});
    for (size_t o = 1; o < graph->output_gradients.size(); ++o)
      feeds[feeds.size() - o].second = Normal({5, 1}, 9);
    results.push_back(RunOnCpu(graph->graph, feeds, graph->input_gradients));
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(results[0][i].f, results[1][i].f) << "input " << i;
}

TEST(LayerNorm, SameBitsOnAnyThreads) {
  const Array<float> x = Normal({5000, 70}, 1), gamma = Normal({70}, 2), dy = Normal({5000, 70}, 3);
  ExpectSameBitsOnAnyThreads("LayerNormalization", {x, gamma, gamma}, 3);
  ExpectSameBitsOnAnyThreads("LayerNormGradient", {x, gamma, dy}, 3);
}

TEST(LayerNorm, WrongUseIsAnError) {
  const auto error = [](const Inputs& inputs, int64_t axis) {
    return ErrorOf([&] { RunOp("LayerNormalization", inputs, 1, {{"axis", axis}}); });
  };
  EXPECT_NE(error({Normal({2, 3}, 1), Normal({3}, 1)}, 2).find("axis 2"), std::string::npos);
  EXPECT_NE(error({Normal({2, 3}, 1), Normal({2}, 1)}, -1).find("does not broadcast"),
            std::string::npos);
  EXPECT_NE(error({Normal({2, 3}, 1), Normal({2, 3}, 1)}, -1).find("does not broadcast"),
            std::string::npos);
}

}  // namespace
}  // namespace weir
