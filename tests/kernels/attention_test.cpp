#include <gtest/gtest.h>

#include <cmath>

#include "graph/op_schema.h"
#include "graph/text.h"
#include "tests/kernels/run_op.h"

namespace weir {
namespace {

constexpr double kEps = 1.1920929e-7;

TEST(Attention, OneTokenCopiesItsValue) {
  const auto y = RunOp("Attention", {Normal({1, 1, 2, 4}, 1), Normal({1, 1, 1, 4}, 2),
                                     Floats({1, 1, 1, 2}, {3, -5})});
  EXPECT_EQ(y[0].f, (std::vector<float>{3, -5, 3, -5}));
}

// Scores are 0 and log 3, so the weights of query 1 are 1/4 and 3/4; query 0 sees key 0 alone.
TEST(Attention, WeighsByHandComputedSoftmax) {
  const float log3 = std::log(3.0f);
  const Inputs in = {Floats({1, 2, 1, 1}, {1, 1}), Floats({1, 2, 1, 1}, {0, log3}),
                     Floats({1, 2, 1, 1}, {8, 16})};
  const auto y = RunOp("Attention", in, 2, {{"scale", 1.0}});
  EXPECT_FLOAT_EQ(y[0].f[0], 8);
  EXPECT_FLOAT_EQ(y[0].f[1], 14);
  EXPECT_FLOAT_EQ(y[1].f[1], std::log(4.0f));
  const auto all = RunOp("Attention", in, 1, {{"scale", 1.0}, {"causal", int64_t{0}}});
  EXPECT_FLOAT_EQ(all[0].f[0], 14);
  const auto own = RunOp("Attention", in, 1, {{"scale", 1.0}, {"window", int64_t{1}}});
  EXPECT_EQ(own[0].f, (std::vector<float>{8, 16}));
}

// A sink of log 4 joins the weights 1 and 3: y = (1*8 + 3*16) / 8.
// Visible pairs of 5 queries: 1+2+3+4+5; 1+2+2+2+2 through a window of 2; 25 without a mask. 2 flop a pair and channel, of
// q k^T and of p v, on 3 heads of 4 and 6 channels.
TEST(Attention, CostsTheVisiblePairs) {
  const auto flops = [](const std::string& attributes) {
    const auto graph = ParseText("graph (float[1,5,3,4] q, float[1,5,1,4] k, float[1,5,1,6] v) => (float[1,5,3,6] y)\n{ y = ai.weir::Attention" + attributes + "(q, k, v) }");
    const Node& node = *graph->nodes().front();
    return node.schema->cost(node).flops / (2 * 3 * (4 + 6));
  };
  EXPECT_EQ(flops(""), 15);
  EXPECT_EQ(flops("<window = 2>"), 9);
  EXPECT_EQ(flops("<window = 9>"), 15);
  EXPECT_EQ(flops("<causal = 0>"), 25);
}

// Of 12 queries shares of 2 runs of 2: positions 0 1 10 11, 2 3 8 9, 4 5 6 7 see 26 keys each; through a window of 5 those at 0 to 3 see
// 1, 2, 3 and 4.
TEST(Attention, SharesOfTheRowsCostTheirVisiblePairs) {
  const auto flops = [](int64_t share, const std::string& attributes) {
    const auto graph = ParseText("graph (float[1,4,3,4] q, float[1,12,1,4] k, float[1,12,1,6] v) => (float[1,4,3,6] y)\n{ y = ai.weir::Attention<row_share = " +
                                 std::to_string(share) + ", row_shares = 3" + attributes + ">(q, k, v) }");
    const Node& node = *graph->nodes().front();
    return node.schema->cost(node).flops / (2 * 3 * (4 + 6));
  };
  for (const int64_t share : {0, 1, 2}) EXPECT_EQ(flops(share, ""), 26) << share;
  EXPECT_EQ(flops(0, ", window = 5"), 13);
  EXPECT_EQ(flops(1, ", window = 5"), 17);
  EXPECT_EQ(flops(2, ", window = 5"), 20);
  EXPECT_EQ(flops(1, ", causal = 0"), 48);
}

TEST(Attention, SinkTakesItsShare) {
  const float log3 = std::log(3.0f), log4 = std::log(4.0f);
  const Inputs in = {Floats({1, 2, 1, 1}, {1, 1}), Floats({1, 2, 1, 1}, {0, log3}),
                     Floats({1, 2, 1, 1}, {8, 16}), Floats({1}, {log4})};
  const auto y = RunOp("Attention", in, 2, {{"scale", 1.0}});
  EXPECT_FLOAT_EQ(y[0].f[0], 8.0f / 5);
  EXPECT_FLOAT_EQ(y[0].f[1], 7);
  EXPECT_FLOAT_EQ(y[1].f[1], std::log(8.0f));
}

TEST(Attention, HugeScoresNeitherOverflowNorVanish) {
  const Inputs in = {Floats({1, 2, 1, 1}, {1e4f, 1e4f}), Floats({1, 2, 1, 1}, {-1e4f, 1e4f}),
                     Floats({1, 2, 1, 1}, {8, 16})};
  EXPECT_EQ(RunOp("Attention", in, 1, {{"scale", 1.0}})[0].f, (std::vector<float>{8, 16}));
}

// Sharp rows over many tiles. The float32 dot products behind a score of size ~10 err by a few eps
// of it, which the exponential passes on: an untiled float32 softmax in NumPy errs by 43 to 63 eps
// of y's rms on four such draws. Allowed is twice that.
TEST(Attention, LongSequencesStayCloseToFloat64) {
  const Inputs in = {Normal({1, 517, 4, 40}, 1, 1.5f), Normal({1, 517, 2, 40}, 2, 1.5f),
                     Normal({1, 517, 2, 24}, 3), Normal({4}, 4)};
  const auto got = RunOp("Attention", in, 2);
  const auto want = RunReference("Attention", in, 2);
  EXPECT_LT(RelativeError(got[0], want[0]), 128 * kEps);
  EXPECT_LT(RelativeError(got[1], want[1]), 8 * kEps);

  Inputs back = {in[0], in[1], in[2], got[0], got[1], Normal({1, 517, 4, 24}, 5), in[3]};
  const auto grads = RunOp("AttentionGradient", back, 4);
  for (const size_t saved : {3, 4})
    back[saved].f.assign(want[saved - 3].f.begin(), want[saved - 3].f.end());
  const auto want_grads = RunReference("AttentionGradient", back, 4);
  for (size_t o = 0; o < 4; ++o) EXPECT_LT(RelativeError(grads[o], want_grads[o]), 128 * kEps) << o;
}

// Where the last query that sees a tile of keys is the first of its own tile: windows of 64 n + 2.
TEST(Attention, GradientsReachTheLastQueryOfAWindow) {
  for (const int64_t window : {2, 3, 65, 66, 67}) {
    const Inputs in = {Normal({1, 200, 2, 8}, 1), Normal({1, 200, 1, 8}, 2), Normal({1, 200, 1, 8}, 3)};
    const Attributes attributes = {{"window", window}};
    const auto y = RunOp("Attention", in, 2, attributes);
    const auto exact = RunReference("Attention", in, 2, attributes);
    Inputs back = {in[0], in[1], in[2], y[0], y[1], Normal({1, 200, 2, 8}, 5)};
    const auto grads = RunOp("AttentionGradient", back, 3, attributes);
    for (const size_t saved : {3, 4}) back[saved].f.assign(exact[saved - 3].f.begin(), exact[saved - 3].f.end());
    const auto want = RunReference("AttentionGradient", back, 3, attributes);
    for (size_t o = 0; o < 3; ++o) EXPECT_LT(RelativeError(grads[o], want[o]), 128 * kEps) << "window " << window << ", gradient " << o;
  }
}

// One kv head on several threads takes the two-sweep backward, on one thread the single sweep.
TEST(Attention, BitsDoNotDependOnThreads) {
  for (const int64_t kv_heads : {1, 3}) {
    const int64_t heads = 3;
    const Inputs in = {Normal({2, 333, heads, 20}, 1), Normal({2, 333, kv_heads, 20}, 2),
                       Normal({2, 333, kv_heads, 12}, 3), Normal({heads}, 4)};
    const Attributes attributes = {{"window", int64_t{150}}, {"softcap", 20.0}};
    ExpectSameBitsOnAnyThreads("Attention", in, 2, attributes);
    const auto y = RunOp("Attention", in, 2, attributes);
    ExpectSameBitsOnAnyThreads(
        "AttentionGradient",
        {in[0], in[1], in[2], y[0], y[1], Normal({2, 333, heads, 12}, 5), in[3]}, 4, attributes);
  }
  const Inputs one_head = {Normal({1, 400, 2, 16}, 1), Normal({1, 400, 1, 16}, 2),
                           Normal({1, 400, 1, 16}, 3)};
  const auto y = RunOp("Attention", one_head, 2);
  ExpectSameBitsOnAnyThreads(
      "AttentionGradient",
      {one_head[0], one_head[1], one_head[2], y[0], y[1], Normal({1, 400, 2, 16}, 5)}, 3);
}

// What a masked key holds must not reach the rows that cannot see it.
TEST(Attention, LaterTokensDoNotTouchEarlierRows) {
  Inputs in = {Normal({1, 100, 2, 8}, 1), Normal({1, 100, 1, 8}, 2), Normal({1, 100, 1, 8}, 3)};
  const auto before = RunOp("Attention", in)[0];
  for (size_t i = 70 * 8; i < 800; ++i) in[1].f[i] = in[2].f[i] = 1e6f;
  const auto after = RunOp("Attention", in)[0];
  for (size_t i = 0; i < 70 * 16; ++i) ASSERT_EQ(before.f[i], after.f[i]) << i;
}

TEST(Attention, RejectsWrongUse_C1toC6) {
  const auto error = [](Dims q, Dims k, Dims v, Attributes attributes = {}, Dims sinks = {}) {
    Inputs in = {Array<float>::Floats(q), Array<float>::Floats(k), Array<float>::Floats(v)};
    if (!sinks.empty()) in.push_back(Array<float>::Floats(sinks));
    return ErrorOf([&] { RunOp("Attention", in, 1, attributes); });
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  const Dims q = {1, 3, 4, 8}, k = {1, 3, 2, 8};
  EXPECT_EQ(error(q, k, k), "");
  EXPECT_TRUE(has(error({1, 3, 8}, k, k), "C1"));
  EXPECT_TRUE(has(error(q, {1, 4, 2, 8}, {1, 4, 2, 8}), "C2"));
  EXPECT_TRUE(has(error(q, {1, 3, 2, 6}, k), "C2"));
  EXPECT_TRUE(has(error(q, {1, 3, 3, 8}, {1, 3, 3, 8}), "C3"));
  EXPECT_TRUE(has(error(q, k, k, {{"window", int64_t{-1}}}), "C4"));
  EXPECT_TRUE(has(error(q, k, k, {{"window", int64_t{2}}, {"causal", int64_t{0}}}), "C4"));
  EXPECT_TRUE(has(error(q, k, k, {{"softcap", -1.0}}), "C5"));
  EXPECT_TRUE(has(error(q, k, k, {}, {2}), "C6"));
}

}  // namespace
}  // namespace weir
