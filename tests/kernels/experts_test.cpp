#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/kernels/run_op.h"

namespace weir {
namespace {

constexpr double kEps = 1.1920929e-7;

struct Sizes {
  int64_t n, k, e, h, i;
};

Inputs Draw(const Sizes& s, std::vector<int64_t> ids) {
  const float down_scale = 1 / std::sqrt(static_cast<float>(s.i));
  return {Normal({s.n, s.h}, 1),
          Ints({s.n, s.k}, std::move(ids)),
          Normal({s.n, s.k}, 2),
          Normal({s.e, 2 * s.i, s.h}, 3, 1 / std::sqrt(static_cast<float>(s.h))),
          Normal({s.e, s.h, s.i}, 4, down_scale),
          Normal({s.e, 2 * s.i}, 5),
          Normal({s.e, s.h}, 6)};
}

// The inputs of ExpertsGradient: dy and the accumulators follow.
Inputs Backward(Inputs in, float accumulator = 0) {
  in.push_back(Normal(in[0].dims, 7));
  for (size_t p = 3; p < 7; ++p) {
    in.push_back(in[p].dtype == DType::kUndefined ? Absent()
                                                  : Array<float>::Floats(in[p].dims, accumulator));
  }
  return in;
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// One token, one expert, one channel: x = 2, gate 1.5, up -0.25, down 3, biases 0.5, 0.125, -1.
Inputs OneChannel() {
  return {Floats({1, 1}, {2}),     Ints({1, 1}, {0}),
          Floats({1, 1}, {0.75f}), Floats({1, 2, 1}, {1.5f, -0.25f}),
          Floats({1, 1, 1}, {3}),  Floats({1, 2}, {0.5f, 0.125f}),
          Floats({1, 1}, {-1})};
}

TEST(Experts, OneChannelMatchesHandArithmetic) {
  const double g = 3.5, u = -0.375;
  const auto y = [](Attributes attributes) {
    return RunOp("Experts", OneChannel(), 1, attributes)[0].f[0];
  };
  EXPECT_NEAR(y({}), 0.75 * (3 * g * Sigmoid(g) * u - 1), 1e-6);
  EXPECT_NEAR(y({{"alpha", 1.5}, {"beta", 1.0}}), 0.75 * (3 * g * Sigmoid(1.5 * g) * (u + 1) - 1),
              1e-6);
  EXPECT_NEAR(y({{"limit", 0.25}, {"beta", 1.0}}), 0.75 * (3 * 0.25 * Sigmoid(0.25) * 0.75 - 1),
              1e-6);
  EXPECT_NEAR(y({{"activation", "relu"}}), 0.75 * (3 * g * u - 1), 1e-6);
  EXPECT_NEAR(y({{"activation", "silu"}, {"alpha", 9.0}}), 0.75 * (3 * g * Sigmoid(g) * u - 1),
              1e-6);
  EXPECT_NEAR(y({{"activation", "gelu"}}),
              0.75 * (3 * g * 0.5 * (1 + std::erf(g / std::sqrt(2.0))) * u - 1), 1e-6);
}

// Beyond the limit a clamp stops the gradient; the other branch still passes its own.
TEST(Experts, ClampsPassNoGradientOutsideTheLimit) {
  Inputs in = OneChannel();  // g = 3.5, u = -0.375
  in.push_back(Floats({1, 1}, {2}));
  const double da = 0.75 * 2 * 3;
  const auto gradient = [&](double limit) {
    return RunOp("ExpertsGradient", in, 6, {{"limit", limit}, {"beta", 1.0}});
  };
  const auto gate_clamped = gradient(1);
  EXPECT_EQ(gate_clamped[4].f[0], 0);
  EXPECT_NEAR(gate_clamped[4].f[1], da * Sigmoid(1), 1e-6);
  const auto both_clamped = gradient(0.25);
  EXPECT_EQ(both_clamped[4].f[0], 0);
  EXPECT_EQ(both_clamped[4].f[1], 0);
  EXPECT_EQ(both_clamped[0].f[0], 0);
  const auto none = gradient(4);
  EXPECT_NEAR(none[4].f[0], da * 0.625 * Sigmoid(3.5) * (1 + 3.5 * (1 - Sigmoid(3.5))), 1e-6);
  EXPECT_NEAR(none[1].f[0], 2 * (3 * 3.5 * Sigmoid(3.5) * 0.625 - 1), 1e-6);
}

// RTD-10: the empty group first, last, and everywhere.
TEST(Experts, EmptyGroupsAnywhereAreFine) {
  for (const int64_t expert : {0, 1, 2}) {
    const Sizes s{5, 1, 3, 16, 8};
    const Inputs in = Draw(s, std::vector<int64_t>(5, expert));
    EXPECT_LT(RelativeError(RunOp("Experts", in)[0], RunReference("Experts", in)[0]), 16 * kEps);
    const auto grads = RunOp("ExpertsGradient", Backward(in, 0.5f), 6);
    const auto want = RunReference("ExpertsGradient", Backward(in, 0.5f), 6);
    for (size_t o = 0; o < 6; ++o) EXPECT_LT(RelativeError(grads[o], want[o]), 32 * kEps) << o;
    for (int64_t e = 0; e < 3; ++e) {
      for (int64_t j = 0; e != expert && j < s.h * s.i; ++j)
        ASSERT_EQ(grads[3].f[e * s.h * s.i + j], 0.5f);
    }
  }
  const Inputs none = Backward(Draw({0, 1, 3, 16, 8}, {}), 0.5f);
  const auto grads = RunOp("ExpertsGradient", none, 6);
  EXPECT_TRUE(grads[0].f.empty());
  for (size_t o = 2; o < 6; ++o) {
    for (const float g : grads[o].f) ASSERT_EQ(g, 0.5f);
  }
}

// RTD-22: with top_k = 1 and weight 1 a token gets its expert's plain output.
TEST(Experts, TopOneWithWeightOneIsThePlainExpert) {
  Inputs in = Draw({6, 1, 2, 8, 8}, {0, 1, 1, 0, 1, 0});
  in[2].f.assign(6, 1.0f);
  const auto mixed = RunOp("Experts", in)[0];
  for (const int64_t expert : {0, 1}) {
    Inputs alone = in;
    alone[1].i.assign(6, expert);
    const auto y = RunOp("Experts", alone)[0];
    for (size_t n = 0; n < 6; ++n) {
      if (in[1].i[n] != expert) continue;
      EXPECT_EQ(std::memcmp(&mixed.f[n * 8], &y.f[n * 8], 8 * sizeof(float)), 0) << n;
    }
  }
}

TEST(Experts, RowsHaveTheSameBitsWhateverTheyAreGroupedWith) {
  const Sizes s{600, 2, 3, 24, 20};
  std::vector<int64_t> ids;
  for (int64_t n = 0; n < s.n; ++n) ids.insert(ids.end(), {n % 3, n % 7 == 0 ? n % 3 : 2});
  const Inputs in = Draw(s, ids);
  const auto all = RunOp("Experts", in)[0];
  for (const int64_t n : {int64_t{0}, int64_t{311}, int64_t{599}}) {
    Inputs one = in;
    one[0] = Floats({1, s.h}, {in[0].f.begin() + n * s.h, in[0].f.begin() + (n + 1) * s.h});
    one[1] = Ints({1, 2}, {ids[2 * n], ids[2 * n + 1]});
    one[2] = Floats({1, 2}, {in[2].f[2 * n], in[2].f[2 * n + 1]});
    const auto y = RunOp("Experts", one)[0];
    EXPECT_EQ(std::memcmp(&all.f[n * s.h], y.f.data(), s.h * sizeof(float)), 0) << n;
  }
}

// Two contributions of 1 meet an accumulator of 2^24, where 2^24 + 1 rounds back. In one unit they
// arrive as 2, in two units one by one. activation: relu(1) * (0 + 1) = 1.
TEST(Experts, UnitsAreSummedFromZeroAndFoldedInOrder) {
  const float big = 16777216.0f;
  const auto ddown = [&](int64_t leaves, int64_t unit_rows) {
    return RunOp("ExpertsGradient",
                 {Floats({2, 1}, {1, 1}), Ints({2, 1}, {0, 0}), Floats({2, 1}, {1, 1}),
                  Floats({1, 2, 1}, {1, 0}), Floats({1, 1, 1}, {1}), Absent(), Absent(),
                  Floats({2, 1}, {1, 1}), Absent(), Floats({1, 1, 1}, {big})},
                 4,
                 {{"activation", "relu"},
                  {"beta", 1.0},
                  {"leaves", leaves},
                  {"unit_rows", unit_rows}})[3]
        .f[0];
  };
  EXPECT_EQ(ddown(1, 4096), big + 2);
  EXPECT_EQ(ddown(1, 1), big);
  EXPECT_EQ(ddown(2, 4096), big);
}

// Routes of expert 0 arrive as leaf 0 (tokens 0, 2), then leaf 1 (tokens 1, 3): (A + B) + (C + D).
TEST(Experts, LeavesOrderTheRoutes) {
  const float big = 16777216.0f;
  const auto ddown = [&](std::vector<float> dy) {
    return RunOp("ExpertsGradient",
                 {Floats({4, 1}, {1, 1, 1, 1}), Ints({4, 1}, {0, 0, 0, 0}),
                  Floats({4, 1}, {1, 1, 1, 1}), Floats({1, 2, 1}, {1, 0}), Floats({1, 1, 1}, {1}),
                  Absent(), Absent(), Floats({4, 1}, std::move(dy)), Absent(),
                  Floats({1, 1, 1}, {0})},
                 4, {{"activation", "relu"}, {"beta", 1.0}, {"leaves", int64_t{2}}})[3]
        .f[0];
  };
  EXPECT_EQ(ddown({big, 1, -big, 1}), 2);     // (big - big) + (1 + 1)
  EXPECT_EQ(ddown({big, 1, 1, 1}), big + 2);  // (big + 1) + (1 + 1)
  EXPECT_EQ(ddown({1, big, 1, -big}), 2);     // (1 + 1) + (big - big)
}

// Several chunks, batches, units longer than a product's block, and all on one expert.
TEST(Experts, ManyTokensMatchFloat64) {
  const Sizes s{5000, 2, 3, 6, 5};
  std::vector<int64_t> ids;
  for (int64_t n = 0; n < s.n; ++n) ids.insert(ids.end(), {1, n % 11 == 0 ? 2 : 1});
  const Inputs in = Draw(s, ids);
  EXPECT_LT(RelativeError(RunOp("Experts", in)[0], RunReference("Experts", in)[0]), 32 * kEps);
  for (const Attributes& attributes :
       {Attributes{}, Attributes{{"leaves", int64_t{1}}},
        Attributes{{"leaves", int64_t{3}}, {"unit_rows", int64_t{700}}}}) {
    const Inputs backward = Backward(in, 0.25f);
    const auto got = RunOp("ExpertsGradient", backward, 6, attributes);
    const auto want = RunReference("ExpertsGradient", backward, 6, attributes);
    // Sums of about 10^4 float32 terms: rounding grows with the root of the count, below 256 eps.
    for (size_t o = 0; o < 6; ++o) EXPECT_LT(RelativeError(got[o], want[o]), 256 * kEps) << o;
  }
}

TEST(Experts, BitsDoNotDependOnThreads) {
  const Sizes s{3000, 3, 5, 40, 24};
  std::vector<int64_t> ids;
  for (int64_t n = 0; n < s.n; ++n) ids.insert(ids.end(), {n % 4, n * n % 3, 0});
  const Inputs in = Draw(s, ids);
  ExpectSameBitsOnAnyThreads("Experts", in, 1, {{"limit", 2.0}});
  ExpectSameBitsOnAnyThreads("ExpertsGradient", Backward(in, 0.25f), 6,
                             {{"limit", 2.0}, {"unit_rows", int64_t{300}}, {"leaves", int64_t{2}}});
}

TEST(Experts, RejectsIdsOutsideTheExperts_C6) {
  for (const int64_t id : {int64_t{-1}, int64_t{3}}) {
    const Inputs in = Draw({2, 2, 3, 4, 4}, {0, 1, 2, id});
    const std::string want =
        "expert id " + std::to_string(id) + " at token 1 slot 1 is outside [0,3)";
    EXPECT_NE(ErrorOf([&] { RunOp("Experts", in); }).find(want), std::string::npos);
    EXPECT_NE(ErrorOf([&] { RunOp("ExpertsGradient", Backward(in), 6); }).find(want),
              std::string::npos);
  }
}

TEST(Experts, RejectsWrongUse_C1toC5) {
  const auto error = [](size_t input, Dims dims, const Attributes& attributes = {}) {
    Inputs in = Draw({2, 1, 3, 4, 6}, {0, 1});
    if (!dims.empty())
      in[input] = input == 1 ? Array<float>::Ints(dims) : Array<float>::Floats(dims);
    return ErrorOf([&] { RunOp("Experts", in, 1, attributes); });
  };
  EXPECT_EQ(error(0, {}), "");
  EXPECT_NE(error(0, {2, 2, 2}).find("C1"), std::string::npos);
  EXPECT_NE(error(2, {2, 2}).find("C2"), std::string::npos);
  EXPECT_NE(error(1, {3, 1}).find("C2"), std::string::npos);
  EXPECT_NE(error(3, {3, 11, 4}).find("C3"), std::string::npos);
  EXPECT_NE(error(4, {2, 4, 6}).find("C3"), std::string::npos);
  EXPECT_NE(error(5, {3, 6}).find("C4"), std::string::npos);
  EXPECT_NE(error(6, {3, 5}).find("C4"), std::string::npos);
  EXPECT_NE(error(0, {}, {{"limit", 0.0}}).find("C5"), std::string::npos);
  EXPECT_NE(error(0, {}, {{"activation", "swish"}}).find("expected swiglu"), std::string::npos);
}

}  // namespace
}  // namespace weir
