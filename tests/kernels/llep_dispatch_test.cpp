#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/llep/plan.h"
#include "tests/kernels/dispatch_harness.h"

namespace weir {
namespace {

constexpr double kEps = 1.1920929e-7;

int64_t Balanced(int64_t rank, int64_t token, int64_t slot) { return rank + token + slot; }
int64_t AllToOne(int64_t, int64_t, int64_t) { return 1; }
// Expert 0 half of the time, expert 1 a quarter, and so on.
int64_t Skewed(int64_t rank, int64_t token, int64_t slot) {
  uint32_t state = static_cast<uint32_t>(rank * 7919 + token * 31 + slot) * 2654435761u;
  state ^= state >> 15;
  int64_t expert = 0;
  for (; (state & 1) != 0 && expert < 30; state >>= 1) ++expert;
  return expert;
}
Routing Modulo(Routing routing, int64_t experts) {
  return [=](int64_t r, int64_t t, int64_t s) { return routing(r, t, s) % experts; };
}

struct Case {
  const char* name;
  int64_t experts, leaves;
  std::vector<int64_t> tokens;  // per rank
  Routing routing;
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

std::vector<Case> Cases() {
  return {{"balanced", 4, 4, {24, 24}, Balanced},
          {"skewed", 8, 5, {40, 37, 40, 11}, Skewed},
          {"all_to_one", 4, 4, {24, 24, 24, 24}, AllToOne},
          {"one_rank", 5, 4, {30}, Skewed},
          {"zero_tokens", 4, 4, {0, 26}, Skewed},
          {"one_token", 4, 16, {1, 0, 3, 0}, Skewed},
          {"no_tokens", 4, 4, {0, 0}, Balanced},
          {"three_experts_two_ranks", 3, 3, {20, 17}, Skewed},
          // RTD-01, RTD-02, RTD-04: rank 1 receives no route, all its experts idle.
          {"idle_rank", 4, 4, {16, 16}, [](int64_t, int64_t, int64_t) { return 0; }}};
}

DispatchProblem Problem(const Case& c) {
  return MakeProblem({.e = c.experts, .leaves = c.leaves}, c.tokens, Modulo(c.routing, c.experts));
}

const Attributes kEager = {{"llep_lambda", 1.0},
                           {"llep_alpha", 1.0},
                           {"min_rows", int64_t{1}},
                           {"max_foreign", int64_t{2}}};
Attributes With(Attributes attributes, const Attributes& more) {
  for (const auto& [name, value] : more) attributes.Set(name, value);
  return attributes;
}

class Dispatch : public testing::TestWithParam<Case> {};

// Rounding of the sums of up to 300 float32 terms, as for Experts.
TEST_P(Dispatch, MatchesFloat64) {
  const DispatchProblem problem = Problem(GetParam());
  const DispatchRun run = RunDispatch(problem, With(kEager, {{"chunk_tokens", int64_t{7}}}), 0.5f);
  const auto truth = RunTruth(problem, 0.5f);
  const auto near = [](const Array<float>& got, const Array<float>& want, const char* what) {
    Array<double> exact;
    exact.dims = want.dims;
    exact.f.assign(want.f.begin(), want.f.end());
    ASSERT_EQ(got.dims, want.dims) << what;
    if (got.f.empty()) return;
    EXPECT_LT(RelativeError(got, exact), 64 * kEps) << what;
  };
  for (size_t rank = 0; rank < truth.size(); ++rank) {
    near(run.ranks[rank].y, truth[rank].y, "y");
    near(run.ranks[rank].dx, truth[rank].dx, "dx");
    near(run.ranks[rank].dweights, truth[rank].dweights, "dweights");
    for (size_t g = 0; g < truth[rank].gradients.size(); ++g) {
      near(run.ranks[rank].gradients[g], truth[rank].gradients[g], "weight gradient");
    }
  }
}

// The plain op on one device is the twin of every plan.
TEST_P(Dispatch, HasTheBitsOfTheTwinWhateverTheKnobs) {
  for (const int64_t unit_rows : {1, 3, 4096}) {
    DispatchProblem problem = Problem(GetParam());
    problem.unit_rows = unit_rows;
    const auto twin = RunTwin(problem, 0.25f);
    ExpectSameBits(RunDispatch(problem, {}, 0.25f).ranks, twin, "plain, one chunk");
    for (const int64_t chunk_tokens : {0, 1, 2, 5, 9, 16}) {
      for (const double alpha : {1.0, 1.1, 2.0}) {
        for (const int64_t max_foreign : {1, 4}) {
          const Attributes knobs = With(kEager, {{"chunk_tokens", chunk_tokens},
                                                 {"llep_alpha", alpha},
                                                 {"max_foreign", max_foreign}});
          ExpectSameBits(RunDispatch(problem, knobs, 0.25f).ranks, twin,
                         StrCat("unit_rows ", unit_rows, ", chunk_tokens ", chunk_tokens,
                                ", alpha ", alpha, ", max_foreign ", max_foreign));
          if (HasFailure()) return;
        }
      }
    }
  }
}

// Units longer than one chain of a product and blocks of several tasks, on helpers too.
TEST(LlepDispatch, LongUnitsHaveTheBitsOfTheTwin) {
  for (const int64_t unit_rows : {290, 4096}) {
    const DispatchProblem problem =
        MakeProblem({.e = 3, .leaves = 2, .unit_rows = unit_rows}, {900, 700}, AllToOne);
    const DispatchRun run = RunDispatch(problem, kEager);
    EXPECT_GT(run.traffic[1].calls.at("ReturnPartial"), 0);
    ExpectSameBits(run.ranks, RunTwin(problem), StrCat("unit_rows ", unit_rows));
  }
}

// What really arrives, against the published bounds.
TEST_P(Dispatch, ReceivesNoMoreThanTheBounds) {
  for (const int64_t chunk_tokens : {0, 2, 5, 9}) {
    const DispatchProblem problem = Problem(GetParam());
    LlepKnobs knobs{.experts = problem.e,
                    .ranks = std::ssize(problem.ranks),
                    .top_k = problem.k,
                    .max_tokens = problem.max_tokens(),
                    .leaves = problem.leaves,
                    .unit_rows = problem.unit_rows,
                    .chunk_tokens = chunk_tokens};
    const DispatchRun plain = RunDispatch(problem, {{"chunk_tokens", chunk_tokens}});
    const DispatchRun eager = RunDispatch(problem, With(kEager, {{"chunk_tokens", chunk_tokens}}));
    for (size_t rank = 0; rank < problem.ranks.size(); ++rank) {
      knobs.lambda = std::numeric_limits<double>::infinity();
      EXPECT_LE(plain.traffic[rank].most_rows, PlainRowBound(knobs));
      knobs.lambda = knobs.alpha = 1;
      EXPECT_LE(eager.traffic[rank].most_rows, RowBound(knobs));
      EXPECT_LE(RowBound(knobs),
                std::max(BalancedRowBound(knobs),
                         knobs.ranks * knobs.top_k * ChunkSizesOf(knobs).leaf_tokens));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Dispatch, testing::ValuesIn(Cases()),
                         [](const auto& info) { return std::string(info.param.name); });

// RTD-05: ranks of 7 tokens and of 1 token both run 3 chunks of 3 tokens.
TEST(LlepDispatch, RanksAgreeOnTheNumberOfChunks) {
  const DispatchProblem problem =
      MakeProblem({.e = 2, .k = 1, .leaves = 7}, {7, 1}, Modulo(Balanced, 2));
  const DispatchRun run = RunDispatch(problem, {{"chunk_tokens", int64_t{3}}});
  for (const Traffic& traffic : run.traffic) EXPECT_EQ(traffic.calls.at("DispatchRows"), 3 + 3 * 3);
  ExpectSameBits(run.ranks, RunTwin(problem), "7 and 1 tokens");
}

// RTD-14: with everything on one expert, units spread over all ranks within the balanced bound.
TEST(LlepDispatch, SpreadsOneHotExpertOverAllRanks) {
  const DispatchProblem problem = MakeProblem({.e = 4, .leaves = 4}, {24, 24, 24, 24}, AllToOne);
  const DispatchRun run = RunDispatch(problem, kEager);
  const DispatchRun plain = RunDispatch(problem, {});
  EXPECT_EQ(plain.traffic[1].most_rows, 4 * 2 * 24);
  for (const Traffic& traffic : run.traffic) EXPECT_LE(traffic.most_rows, 2 * 24 + 4);
}

// RTD-04: gradients of idle experts are zeros, not absent.
TEST(LlepDispatch, IdleExpertsKeepTheirAccumulators) {
  const DispatchProblem problem = MakeProblem({}, {16, 16}, [](auto...) { return 0; });
  const DispatchRun run = RunDispatch(problem, kEager, 0.5f);
  for (const Array<float>& gradient : run.ranks[1].gradients) {
    for (const float g : gradient.f) ASSERT_EQ(g, 0.5f);
  }
}

// RTD-19: 100 rows of expert 0 split 60 / 40; owner's and helper's partials sum to the whole.
TEST(LlepDispatch, SplitExpertsSumToTheWhole) {
  DispatchProblem problem = MakeProblem(
      {.e = 2, .k = 1, .leaves = 1, .unit_rows = 20}, {50, 60},
      [](int64_t rank, int64_t token, int64_t) { return rank == 1 && token >= 50 ? 1 : 0; });
  const Attributes knobs = With(kEager, {{"llep_alpha", 60.0 / 55}});
  const DispatchRun run = RunDispatch(problem, knobs);
  EXPECT_EQ(run.traffic[1].calls.at("ReturnPartial"), 2);  // 40 rows: two units
  EXPECT_FALSE(run.traffic[0].calls.contains("ReturnPartial"));
  ExpectSameBits(run.ranks, RunTwin(problem), "60/40");
  const auto truth = RunTruth(problem);
  for (size_t g = 0; g < truth[0].gradients.size(); ++g) {
    const auto &got = run.ranks[0].gradients[g].f, &want = truth[0].gradients[g].f;
    double distance = 0, norm = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      distance += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2);
      norm += std::pow(static_cast<double>(want[i]), 2);
    }
    EXPECT_LT(std::sqrt(distance / norm), 1e-6) << "float64's, tensor " << g;
  }
}

// Weights of a borrowed expert travel once for all chunks of a pass.
TEST(LlepDispatch, BorrowedWeightsTravelOnce) {
  const DispatchProblem problem = MakeProblem({.leaves = 8, .unit_rows = 1}, {32, 32}, AllToOne);
  const DispatchRun run = RunDispatch(
      problem, With(kEager, {{"chunk_tokens", int64_t{4}}, {"max_foreign", int64_t{1}}}));
  EXPECT_EQ(run.traffic[0].calls.at("BorrowExpert"), 2 * 4);  // two passes, four tensors
  EXPECT_EQ(run.traffic[0].calls.at("DispatchRows"), 8 + 3 * 8);
}

// Chunk i+1 is on its way before chunk i goes home, and is waited for after that.
TEST(LlepDispatch, ChunksArriveWhileTheirPredecessorComputes) {
  const DispatchProblem problem = MakeProblem({.bias = false}, {24, 24}, Modulo(Balanced, 4));
  const DispatchRun run = RunDispatch(problem, {{"chunk_tokens", int64_t{8}}});
  const std::string d = "DispatchRows", r = "ReturnRows", w = "wait";
  const std::vector<std::string> expected = {
      "GatherRouteCounts", w, d, w, d, r, w, w, d, r, w, w, d, r, w, w, r, w};
  ASSERT_GE(run.traffic[0].order.size(), expected.size());
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), run.traffic[0].order.begin()));
}

// RTD-23: zeroing far tokens leaves the outputs of the others untouched.
TEST(LlepDispatch, TokensAreIndependent) {
  DispatchProblem problem = MakeProblem({.leaves = 16}, {100, 100}, Modulo(Skewed, 4));
  const auto before = RunDispatch(problem, With(kEager, {{"chunk_tokens", int64_t{20}}}));
  for (auto& rank : problem.ranks) std::fill(rank.x.f.begin() + 90 * problem.h, rank.x.f.end(), 0);
  const auto after = RunDispatch(problem, With(kEager, {{"chunk_tokens", int64_t{20}}}));
  for (size_t rank = 0; rank < 2; ++rank) {
    const auto &a = before.ranks[rank].y.f, &b = after.ranks[rank].y.f;
    EXPECT_TRUE(std::equal(a.begin(), a.begin() + 90 * problem.h, b.begin()));
    EXPECT_FALSE(std::equal(a.begin() + 90 * problem.h, a.end(), b.begin() + 90 * problem.h));
  }
}

// RTD-17: every route is counted once.
TEST(LlepDispatch, CountsEveryRouteOnce) {
  const DispatchProblem problem = MakeProblem({}, {24, 7}, Modulo(Skewed, 4));
  const DispatchRun run = RunDispatch(problem, {{"chunk_tokens", int64_t{4}}});
  EXPECT_EQ(run.ranks[0].counts.i, run.ranks[1].counts.i);
  int64_t sum = 0;
  for (const int64_t count : run.ranks[0].counts.i) sum += count;
  EXPECT_EQ(sum, 31 * 2);
}

TEST(LlepDispatch, ABadIdOnOneRankStopsAll) {
  DispatchProblem problem = MakeProblem({}, {8, 8}, Modulo(Balanced, 4));
  problem.ranks[1].ids.i[5] = 4;
  const std::string error = ErrorOf([&] { RunDispatch(problem, {}); });
  EXPECT_NE(error.find("expert id 4 at token 2 slot 1 is outside [0,4)"), std::string::npos)
      << error;
}

// RTD-16: the backward pass replays the forward plan, and refuses routes it was not made for.
TEST(LlepDispatch, RoutesMayNotChangeBetweenPasses) {
  const Inputs in = {Normal({4, 8}, 1),
                     Ints({4, 1}, {0, 1, 1, 0}),
                     Normal({4, 1}, 2),
                     Normal({2, 12, 8}, 3),
                     Normal({2, 8, 6}, 4),
                     Absent(),
                     Absent(),
                     Normal({4, 8}, 5),
                     Absent(),
                     Absent(),
                     Absent(),
                     Absent()};
  const Attributes attributes = {{"experts", int64_t{2}}, {"leaves", int64_t{1}}};
  const auto gradient = [&](std::vector<int64_t> counts) {
    Inputs backward = in;
    backward.push_back(Ints({1, 1, 2}, std::move(counts)));
    return ErrorOf([&] { RunOp("PipelinedLlepGradient", backward, 2, attributes); });
  };
  EXPECT_EQ(gradient({2, 2}), "");
  EXPECT_NE(gradient({3, 1}).find("routes are chosen once and kept"), std::string::npos);
  EXPECT_NE(gradient({1, 4}).find("at most 4 are planned for"), std::string::npos);
}

TEST(LlepDispatch, RejectsWrongUse_C7toC9) {
  const auto error = [](const Attributes& attributes) {
    const Inputs in = {Normal({4, 8}, 1), Ints({4, 1}, {0, 1, 1, 0}), Normal({4, 1}, 2),
                       Normal({2, 12, 8}, 3), Normal({2, 8, 6}, 4)};
    return ErrorOf([&] { RunOp("PipelinedLlep", in, 2, attributes); });
  };
  EXPECT_EQ(error({{"experts", int64_t{2}}}), "");
  EXPECT_NE(error({}).find("experts"), std::string::npos);
  EXPECT_NE(error({{"experts", int64_t{2}}, {"llep_alpha", 0.5}}).find("alpha is 0.5"),
            std::string::npos);
  EXPECT_NE(error({{"experts", int64_t{5}}}).find("C8"), std::string::npos);
  EXPECT_NE(error({{"experts", int64_t{2}}, {"max_tokens", int64_t{3}}}).find("C9"),
            std::string::npos);
  EXPECT_NE(error({{"experts", int64_t{4}}, {"expert_parallel", int64_t{2}}})
                .find("spread over 2 ranks, the group has 1"),
            std::string::npos);
}

}  // namespace
}  // namespace weir
