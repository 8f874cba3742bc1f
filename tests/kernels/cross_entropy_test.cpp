#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/run_op.h"

namespace weir {
namespace {

Inputs Case(Dims dims, std::vector<float> logits, std::vector<int64_t> labels, float scale = 1) {
  Dims tokens(dims.begin(), dims.end() - 1);
  return {Floats(std::move(dims), std::move(logits)), Ints(std::move(tokens), std::move(labels)),
          Floats({}, {scale})};
}

Array<float> Gradient(const Inputs& in, const Array<float>& lse,
                      const Attributes& attributes = {}) {
  return RunOp("CrossEntropyGradient", {in[0], in[1], lse, in[2], Floats({}, {1})}, 1,
               attributes)[0];
}

// Two tokens: logits (0, log 3) and (log 3, 0), both labelled 1: losses log 4 - log 3 and log 4.
TEST(CrossEntropy, MatchesHandArithmetic) {
  const float log3 = std::log(3.0f), log4 = std::log(4.0f);
  const Inputs in = Case({2, 2}, {0, log3, log3, 0}, {1, 1}, 0.5f);
  const auto y = RunOp("CrossEntropy", in, 2);
  EXPECT_FLOAT_EQ(y[0].f[0], 0.5f * (2 * log4 - log3));
  EXPECT_FLOAT_EQ(y[1].f[0], log4);
  const auto dlogits = Gradient(in, y[1]);
  const float want[] = {0.125f, -0.125f, 0.375f, -0.375f};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(dlogits.f[i], want[i], 1e-7f) << i;
}

Array<float> WeightedGradient(const Inputs& in, const Array<float>& lse, const Array<float>& weights) {
  return RunOp("CrossEntropyGradient", {in[0], in[1], lse, in[2], Floats({}, {1}), weights})[0];
}

// The same tokens with weights 3 and 1/2: torch's sum(w * loss) / sum(w).
TEST(CrossEntropy, WeighsTokens) {
  const float log3 = std::log(3.0f), log4 = std::log(4.0f);
  Inputs in = Case({2, 2}, {0, log3, log3, 0}, {1, 1}, 1 / 3.5f);
  const auto weights = Floats({2}, {3, 0.5f});
  in.push_back(weights);
  const auto y = RunOp("CrossEntropy", in, 2);
  EXPECT_FLOAT_EQ(y[0].f[0], (3 * (log4 - log3) + 0.5f * log4) / 3.5f);
  const auto dlogits = WeightedGradient(in, y[1], weights);
  const float want[] = {0.75f, -0.75f, 0.375f, -0.375f};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(dlogits.f[i], want[i] / 3.5f, 1e-7f) << i;
}

TEST(CrossEntropy, WeightZeroIsNoLabelAndWeightOneIsNoWeight) {
  const Inputs masked = Case({3, 2}, {0.3f, 1.7f, std::nanf(""), 0, -2, 0.1f}, {1, -100, 0}, 0.5f);
  Inputs weighted = Case({3, 2}, masked[0].f, {1, 1, 0}, 0.5f);
  const auto weights = Floats({3}, {1, 0, 1});
  weighted.push_back(weights);
  const auto want = RunOp("CrossEntropy", masked, 2), got = RunOp("CrossEntropy", weighted, 2);
  EXPECT_TRUE(std::isfinite(want[0].f[0]));
  EXPECT_EQ(got[0].f, want[0].f);
  EXPECT_EQ(WeightedGradient(weighted, got[1], weights).f, Gradient(masked, want[1]).f);
}

TEST(CrossEntropy, RejectsWeightsOfAnotherShape_C4) {
  const auto error = [](const Array<float>& weights) {
    Inputs in = Case({2, 2}, {0, 1, 2, 3}, {1, 1});
    in.push_back(weights);
    return ErrorOf([&] { RunOp("CrossEntropy", in); });
  };
  EXPECT_NE(error(Floats({3}, {1, 1, 1})).find("C4: weights float[3] must be float32, shaped as labels [2]"), std::string::npos) << error(Floats({3}, {1, 1, 1}));
  EXPECT_NE(error(Ints({2}, {1, 1})).find("C4"), std::string::npos);
  EXPECT_EQ(error(Floats({2}, {1, 1})), "");
}

// VCE-04: nothing but the real columns enters the sum, whatever the leaf width.
TEST(CrossEntropy, ZeroLogitsGiveTheLogarithmOfTheVocabulary) {
  const auto y = RunOp("CrossEntropy", Case({1, 65537}, std::vector<float>(65537), {65536}), 2);
  EXPECT_NEAR(y[1].f[0], 11.09037, 1e-5);
  EXPECT_NEAR(y[0].f[0], 11.09037, 1e-5);
}

// VCE-08
TEST(CrossEntropy, AllIgnoredGivesZeroLossAndZeroGradients) {
  const Inputs in = Case({2, 3}, {1, 2, 3, 4, 5, 6}, {-100, -100}, 0);
  const auto y = RunOp("CrossEntropy", in, 2);
  EXPECT_EQ(y[0].f[0], 0);
  for (const float g : Gradient(in, y[1]).f) EXPECT_EQ(g, 0);
}

TEST(CrossEntropy, IgnoredTokensHaveZeroGradientsEvenWithNanLogits) {
  const Inputs in = Case({2, 2}, {std::nanf(""), 0, 1, 1}, {-100, 0});
  const auto y = RunOp("CrossEntropy", in, 2);
  EXPECT_FLOAT_EQ(y[0].f[0], std::log(2.0f));
  const auto dlogits = Gradient(in, y[1]);
  EXPECT_EQ(dlogits.f[0], 0);
  EXPECT_EQ(dlogits.f[1], 0);
}

// VCE-17
TEST(CrossEntropy, RejectsLabelsOutsideTheVocabulary_C3) {
  const auto error = [](int64_t label, const Attributes& attributes) {
    return ErrorOf([&] {
      RunOp("CrossEntropy", Case({3, 5}, std::vector<float>(15), {0, 1, label}), 1, attributes);
    });
  };
  EXPECT_NE(error(5, {}).find("label 5 at position 2 is outside [0,5)"), std::string::npos)
      << error(5, {});
  EXPECT_NE(error(-1, {}).find("label -1 at position 2"), std::string::npos);
  EXPECT_NE(error(-100, {{"ignore_index", int64_t{2}}}).find("label -100"), std::string::npos);
  EXPECT_EQ(error(-100, {}), "");
  EXPECT_EQ(error(2, {{"ignore_index", int64_t{2}}}), "");
  const auto loss = RunOp("CrossEntropy", Case({2, 5}, std::vector<float>(10), {2, 0}), 1,
                          {{"ignore_index", int64_t{2}}});
  EXPECT_FLOAT_EQ(loss[0].f[0], std::log(5.0f));
}

TEST(CrossEntropy, RejectsWrongShapes_C1C2) {
  const auto error = [](Dims logits, const Array<float>& labels) {
    return ErrorOf([&] {
      RunOp("CrossEntropy", {Array<float>::Floats(logits), labels, Floats({}, {1})});
    });
  };
  EXPECT_NE(error({2, 0}, Ints({2}, {0, 0})).find("C1"), std::string::npos);
  EXPECT_NE(error({2, 3}, Ints({3}, {0, 0, 0})).find("C2"), std::string::npos);
  EXPECT_NE(error({2, 3}, Floats({2}, {0, 0})).find("C2"), std::string::npos);
}

TEST(CrossEntropy, HugeLogitsDoNotOverflow) {
  const Inputs in = Case({1, 3}, {3e4f, -3e4f, 2.9e4f}, {0});
  const auto y = RunOp("CrossEntropy", in, 2);
  EXPECT_EQ(y[0].f[0], 0);
  EXPECT_EQ(y[1].f[0], 3e4f);
  for (const float g : Gradient(in, y[1]).f) EXPECT_EQ(g, 0);
}

// -infinity is a column that cannot be drawn: over a whole leaf, and inside one.
TEST(CrossEntropy, MinusInfinityColumnsAddNothing) {
  std::vector<float> logits(2048 + 3, -INFINITY);
  logits[2048] = logits[2050] = 1;
  const auto y = RunOp("CrossEntropy", Case({1, 2051}, logits, {2050}), 2);
  EXPECT_FLOAT_EQ(y[0].f[0], std::log(2.0f));
}

TEST(CrossEntropy, BitsDoNotDependOnThreads) {
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < 37; ++i) labels.push_back(i % 5 == 0 ? -100 : i * 131 % 5000);
  const Inputs in = {Normal({37, 5000}, 1, 4), Ints({37}, labels), Floats({}, {1.0f / 29})};
  ExpectSameBitsOnAnyThreads("CrossEntropy", in, 2);
  const auto y = RunOp("CrossEntropy", in, 2);
  ExpectSameBitsOnAnyThreads("CrossEntropyGradient", {in[0], in[1], y[1], in[2], Floats({}, {1})},
                             1);
}

// lse carries one float32 rounding of a value near 16 and the loss averages them.
TEST(CrossEntropy, StaysCloseToFloat64) {
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < 64; ++i) labels.push_back(i * 997 % 9001);
  const Inputs in = {Normal({64, 9001}, 3, 3), Ints({64}, labels), Floats({}, {1.0f / 64})};
  const auto got = RunOp("CrossEntropy", in, 2);
  const auto want = RunReference("CrossEntropy", in, 2);
  EXPECT_NEAR(got[0].f[0] / want[0].f[0], 1, 1e-6);
  EXPECT_LT(RelativeError(got[1], want[1]), 4 * 1.2e-7);
}

}  // namespace
}  // namespace weir
