#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/run_op.h"

namespace weir {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct State {
  Array<float> p, m, v;
};

State Zeroed(std::vector<float> p) {
  const auto size = static_cast<int64_t>(p.size());
  return {Floats({size}, std::move(p)), Array<float>::Floats({size}), Array<float>::Floats({size})};
}

void Step(State& state, const Array<float>& gradient, float learning_rate, int64_t step,
          float coefficient = 1, const Attributes& attributes = {{"weight_decay", 0.0}}) {
  auto out =
      RunOp("AdamW",
            {state.p, gradient, state.m, state.v, Floats({}, {learning_rate}, DType::kFloat64),
             Ints({}, {step}), Floats({}, {coefficient})},
            3, attributes);
  state = {out[0], out[1], out[2]};
}

// OPT-02: after ten steps with g = 1 the eleventh moves by lr; a counter that was lost moves it
// further.
TEST(AdamW, UsesTheStepItIsTold) {
  const Array<float> one = Floats({1}, {1});
  State at10 = Zeroed({0});
  for (int64_t t = 1; t <= 10; ++t) Step(at10, one, 0.1f, t);
  EXPECT_NEAR(at10.p.f[0], -1, 1e-6);
  for (const auto& [step, move] :
       {std::pair{11, 0.10000}, std::pair{1, 0.20741}, std::pair{10, 0.10048}}) {
    State state = at10;
    Step(state, one, 0.1f, step);
    EXPECT_NEAR(at10.p.f[0] - state.p.f[0], move, 6e-6) << step;
  }
}

// Torch's defaults, by hand: the first step moves by lr g / (|g| + 1e-8), after a decay of 0.01 lr; m = 0.1 g, v = 0.001 g^2.
TEST(AdamW, DefaultsAreTorchs) {
  State state = Zeroed({1});
  Step(state, Floats({1}, {1e-8f}), 0.1f, 1, 1, {});
  EXPECT_NEAR(state.p.f[0], 1 - 0.001 - 0.1 / 2, 1e-6);
  EXPECT_NEAR(state.m.f[0], 1e-9, 1e-15);
  EXPECT_NEAR(state.v.f[0], 1e-19, 1e-25);
}

// Torch's definition in double, step by step from the float32 state, on gradients of many sizes.
TEST(AdamW, MatchesTorchsDefinitionInFloat64) {
  const int64_t count = 1003;
  const double lr = 0.0009765625, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, decay = 0.1;
  State state{Normal({count}, 1), Array<float>::Floats({count}), Array<float>::Floats({count})};
  const Attributes attributes = {
      {"beta1", beta1}, {"beta2", beta2}, {"epsilon", epsilon}, {"weight_decay", decay}};
  for (int64_t t = 1; t <= 5; ++t) {
    Array<float> gradient = Normal({count}, 10 + static_cast<uint32_t>(t));
    for (size_t i = 0; i < gradient.f.size(); ++i)
      gradient.f[i] *= std::pow(10.0f, -static_cast<float>(i % 7));
    const double time = static_cast<double>(t);
    const State before = state;
    Step(state, gradient, static_cast<float>(lr), t, 0.5f, attributes);
    for (size_t i = 0; i < gradient.f.size(); ++i) {
      const double g = 0.5 * static_cast<double>(gradient.f[i]);
      const double m = before.m.f[i] + (1 - beta1) * (g - before.m.f[i]);
      const double v = beta2 * before.v.f[i] + (1 - beta2) * g * g;
      const double denominator = std::sqrt(v) / std::sqrt(1 - std::pow(beta2, time)) + epsilon;
      const double p =
          before.p.f[i] * (1 - lr * decay) - lr / (1 - std::pow(beta1, time)) * m / denominator;
      ASSERT_NEAR(state.p.f[i], p, 3e-7 * std::max(std::abs(p), lr)) << i;
      ASSERT_NEAR(state.m.f[i], m, 3e-7 * std::max(std::abs(m), std::abs(g))) << i;
      ASSERT_NEAR(state.v.f[i], v, 3e-7 * v) << i;
    }
  }
}

// OPT-05: one counter, and a gradient of zero still steps: m decays and keeps moving p, as torch
// does for grad = 0. By hand with beta1 = 0.5, beta2 = 0.75, g = 1 then 0, lr = 0.1.
TEST(AdamW, ZeroGradientStillSteps) {
  const Attributes attributes = {
      {"beta1", 0.5}, {"beta2", 0.75}, {"epsilon", 0.0}, {"weight_decay", 0.0}};
  State state = Zeroed({0});
  Step(state, Floats({1}, {1}), 0.1f, 1, 1, attributes);
  EXPECT_NEAR(state.p.f[0], -0.1, 1e-7);
  Step(state, Floats({1}, {0}), 0.1f, 2, 1, attributes);
  EXPECT_FLOAT_EQ(state.m.f[0], 0.25f);
  EXPECT_FLOAT_EQ(state.v.f[0], 0.1875f);
  // m-hat = 0.25 / 0.75, v-hat = 0.1875 / 0.4375
  EXPECT_NEAR(state.p.f[0], -0.1 - 0.1 * (1.0 / 3) / std::sqrt(3.0 / 7), 1e-7);
}

// OPT-16: a hundred updates of 6e-4 on a weight of 1 all land.
TEST(AdamW, SmallUpdatesAddUp) {
  State state = Zeroed({1});
  for (int64_t t = 1; t <= 100; ++t) Step(state, Floats({1}, {1}), 6e-4f, t);
  EXPECT_NEAR(state.p.f[0], 0.94, 1e-5);
}

// OPT-17
TEST(AdamW, DecaysWithoutAGradientOnlyWhenTold) {
  for (const double decay : {0.0, 0.5}) {
    State state = Zeroed({2, 2, 2});
    Step(state, Floats({3}, {0, 0, 0}), 0.25f, 1, 1, {{"weight_decay", decay}});
    for (const float p : state.p.f) EXPECT_EQ(p, static_cast<float>(2 * (1 - 0.25 * decay)));
  }
}

// OPT-13
TEST(AdamW, CoefficientThatIsNotFiniteChangesNothing) {
  for (const float coefficient : {kNan, std::numeric_limits<float>::infinity()}) {
    State state{Floats({2}, {2, -3}), Floats({2}, {0.5f, 0.25f}), Floats({2}, {1, 1})};
    Step(state, Floats({2}, {1, kNan}), 0.1f, 3, coefficient, {{"weight_decay", 0.1}});
    EXPECT_EQ(state.p.f, (std::vector<float>{2, -3}));
    EXPECT_EQ(state.m.f, (std::vector<float>{0.5f, 0.25f}));
    EXPECT_EQ(state.v.f, (std::vector<float>{1, 1}));
  }
}

TEST(AdamW, BitsDoNotDependOnThreads) {
  const int64_t count = 100003;
  ExpectSameBitsOnAnyThreads(
      "AdamW",
      {Normal({count}, 1), Normal({count}, 2), Normal({count}, 3),
       Floats({count}, std::vector<float>(count, 0.5f)), Floats({}, {0.01f}, DType::kFloat64),
       Ints({}, {7}), Floats({}, {0.5f})},
      3);
}

TEST(AdamW, RejectsWrongUse_C1toC4) {
  const auto error = [](int64_t moments, float learning_rate, int64_t step,
                        Attributes attributes = {}) {
    return ErrorOf([&] {
      RunOp("AdamW",
            {Array<float>::Floats({3}), Array<float>::Floats({3}), Array<float>::Floats({moments}),
             Array<float>::Floats({3}), Floats({}, {learning_rate}, DType::kFloat64),
             Ints({}, {step}), Floats({}, {1})},
            3, attributes);
    });
  };
  EXPECT_EQ(error(3, 0.1f, 1), "");
  EXPECT_NE(error(4, 0.1f, 1).find("C1"), std::string::npos);
  EXPECT_NE(error(3, 0.1f, 1, {{"beta2", 1.0}}).find("C2"), std::string::npos);
  EXPECT_NE(error(3, 0.1f, 1, {{"epsilon", -1.0}}).find("C2"), std::string::npos);
  EXPECT_NE(error(3, 0.1f, 0).find("step is 0"), std::string::npos);
  EXPECT_NE(error(3, kNan, 1).find("learning_rate is nan"), std::string::npos);
  EXPECT_NE(error(3, -1, 1).find("learning_rate is -1"), std::string::npos);
}

TEST(GradientNorm, IsPythagoras) {
  EXPECT_EQ(RunOp("GradientNorm", {Floats({1}, {3}), Floats({0}, {}), Floats({1, 1}, {4})})[0].f[0],
            5);
}

TEST(GradientNorm, SquaresBeyondFloat32DoNotOverflow) {
  EXPECT_FLOAT_EQ(RunOp("GradientNorm", {Floats({2}, {3e30f, 4e30f})})[0].f[0], 5e30f);
}

TEST(GradientNorm, NotFiniteGradientsShow) {
  EXPECT_TRUE(std::isnan(RunOp("GradientNorm", {Floats({2}, {1, kNan})})[0].f[0]));
}

TEST(GradientNorm, BitsDoNotDependOnThreads) {
  ExpectSameBitsOnAnyThreads("GradientNorm", {Normal({5, 65536 + 17}, 1), Normal({7}, 2)}, 1);
}

TEST(ClipCoefficient, FollowsTorchAndNeverGoesNegative) {
  const auto clip = [](float norm, double max_norm) {
    return RunOp("ClipCoefficient", {Floats({}, {norm}, DType::kFloat64)}, 1,
                 {{"max_norm", max_norm}})[0]
        .f[0];
  };
  EXPECT_EQ(clip(5, 1), static_cast<float>(1 / (5 + 1e-6)));
  EXPECT_EQ(clip(0.5f, 1), 1);
  EXPECT_EQ(clip(0, 1), 1);
  EXPECT_EQ(clip(1e9f, 0), 1);
  for (const float norm : {kNan, std::numeric_limits<float>::infinity()}) {
    EXPECT_TRUE(std::isnan(clip(norm, 1)));
    EXPECT_TRUE(std::isnan(clip(norm, 0)));
  }
  EXPECT_NE(ErrorOf([&] { clip(1, -1); }).find("C1"), std::string::npos);
}

}  // namespace
}  // namespace weir
