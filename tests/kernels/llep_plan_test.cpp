#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "kernels/llep/plan.h"
#include "tests/kernels/run_op.h"

namespace weir {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// Route counts by (source, leaf, expert), zero unless set.
struct Counts {
  explicit Counts(const LlepKnobs& k)
      : knobs(k), values(static_cast<size_t>(k.ranks * k.leaves * k.experts)) {}
  int64_t& at(int64_t source, int64_t leaf, int64_t expert) {
    return values[static_cast<size_t>((source * knobs.leaves + leaf) * knobs.experts + expert)];
  }
  LlepPlan Plan() const {
    LlepPlan plan = MakeLlepPlan(knobs, values);
    CheckLlepPlan(knobs, values, plan);
    return plan;
  }
  std::string Check(const LlepPlan& plan) const {
    return ErrorOf([&] { CheckLlepPlan(knobs, values, plan); });
  }
  LlepKnobs knobs;
  std::vector<int64_t> values;
};

// Rows of (expert, rank) over the whole plan.
int64_t RowsOn(const LlepPlan& plan, int64_t expert, int64_t rank) {
  int64_t rows = 0;
  for (const LlepChunk& chunk : plan.chunks) {
    for (const LlepUnit& unit : chunk.units)
      rows += unit.expert == expert && unit.rank == rank ? unit.rows() : 0;
  }
  return rows;
}

TEST(LlepSizes, ChunksAreAgreedOverRanksOfUnequalTokens) {
  const LlepKnobs knobs{
      .experts = 2, .ranks = 2, .top_k = 1, .max_tokens = 7, .leaves = 7, .chunk_tokens = 3};
  EXPECT_EQ(ChunkSizesOf(knobs).chunks, 3);
  Counts counts(knobs);
  for (int64_t leaf = 0; leaf < 7; ++leaf) counts.at(0, leaf, leaf % 2) = 1;
  counts.at(1, 0, 0) = 1;
  const LlepPlan plan = counts.Plan();
  ASSERT_EQ(plan.chunks.size(), 3u);
  EXPECT_EQ(plan.chunks[2].first_leaf, 6);
}

// Two ranks of two experts; expert 0 has 90 rows, the others 10 each; cap = ceil(120/2) = 60.
Counts Skewed() {
  Counts counts({.experts = 4,
                 .ranks = 2,
                 .top_k = 1,
                 .max_tokens = 60,
                 .leaves = 1,
                 .unit_rows = 10,
                 .alpha = 1,
                 .max_foreign = 1});
  for (int64_t source = 0; source < 2; ++source) {
    counts.at(source, 0, 0) = 45;
    for (int64_t expert = 1; expert < 4; ++expert) counts.at(source, 0, expert) = 5;
  }
  return counts;
}

TEST(LlepPlan, OwnerKeepsWhatFitsAndTheRestSpills) {
  const LlepPlan plan = Skewed().Plan();
  ASSERT_EQ(plan.chunks.size(), 1u);
  EXPECT_EQ(plan.chunks[0].received, (std::vector<int64_t>{60, 60}));
  EXPECT_TRUE(plan.chunks[0].balanced);
  EXPECT_EQ(RowsOn(plan, 0, 0), 50);
  EXPECT_EQ(RowsOn(plan, 0, 1), 40);
  EXPECT_EQ(plan.foreign, (std::vector<std::vector<int64_t>>{{}, {0}}));
  EXPECT_EQ(plan.Slot(1, 0), 0);
  EXPECT_EQ(plan.Slot(1, 1), -1);
}

TEST(LlepPlan, SmallPiecesStayHome) {
  Counts counts = Skewed();
  counts.knobs.min_rows = 40;
  EXPECT_EQ(RowsOn(counts.Plan(), 0, 1), 40);
  counts.knobs.min_rows = 41;
  const LlepPlan plan = counts.Plan();
  EXPECT_EQ(RowsOn(plan, 0, 0), 90);
  EXPECT_FALSE(plan.chunks[0].balanced);
  EXPECT_TRUE(plan.foreign[1].empty());
}

TEST(LlepPlan, UnitsAreNeverSplit) {
  Counts counts = Skewed();
  // 35, 35, 20: the first fits beside 10 at home, the second beside 20 at the helper, the third
  // nowhere.
  counts.knobs.unit_rows = 35;
  const LlepPlan plan = counts.Plan();
  EXPECT_EQ(RowsOn(plan, 0, 0), 55);
  EXPECT_EQ(RowsOn(plan, 0, 1), 35);
  counts.knobs.unit_rows = 90;
  EXPECT_EQ(RowsOn(counts.Plan(), 0, 0), 90);
}

TEST(LlepPlan, PlainBelowLambda) {
  Counts counts = Skewed();
  counts.knobs.lambda = 100.0 / 60 + 0.01;  // rank 0 has 100 rows of a mean of 60
  EXPECT_EQ(RowsOn(counts.Plan(), 0, 0), 90);
  counts.knobs.lambda = 100.0 / 60 - 0.01;
  EXPECT_EQ(RowsOn(counts.Plan(), 0, 0), 50);
  counts.knobs.lambda = kInf;
  EXPECT_EQ(RowsOn(counts.Plan(), 0, 0), 90);
}

TEST(LlepPlan, BorrowsNoMoreThanMaxForeign) {
  LlepKnobs knobs{.experts = 6,
                  .ranks = 3,
                  .top_k = 1,
                  .max_tokens = 90,
                  .leaves = 1,
                  .unit_rows = 5,
                  .lambda = 1,
                  .alpha = 1};
  for (const int64_t most : {0, 1, 2}) {
    knobs.max_foreign = most;
    Counts counts(knobs);
    for (int64_t source = 0; source < 3; ++source) {
      counts.at(source, 0, 0) = 30;  // both on rank 0, 90 rows each; cap 60
      counts.at(source, 0, 1) = 30;
    }
    const LlepPlan plan = counts.Plan();
    for (const auto& slots : plan.foreign) EXPECT_LE(std::ssize(slots), most);
    // One slot each goes to expert 0, so expert 1 stays home whole.
    const std::vector<int64_t> expected[] = {{180, 0, 0}, {90, 60, 30}, {60, 60, 60}};
    EXPECT_EQ(plan.chunks[0].received, expected[most]);
  }
}

// A pair (expert, helper) keeps its slot over chunks: the weight moves once.
TEST(LlepPlan, HelpersAreStickyOverChunks) {
  Counts counts({.experts = 4,
                 .ranks = 4,
                 .top_k = 1,
                 .max_tokens = 64,
                 .leaves = 4,
                 .unit_rows = 4,
                 .chunk_tokens = 16,
                 .alpha = 1,
                 .max_foreign = 2});
  for (int64_t source = 0; source < 4; ++source) {
    for (int64_t leaf = 0; leaf < 4; ++leaf) counts.at(source, leaf, 0) = 16;
  }
  const LlepPlan plan = counts.Plan();
  ASSERT_EQ(plan.chunks.size(), 4u);
  for (const LlepChunk& chunk : plan.chunks)
    EXPECT_EQ(chunk.received, (std::vector<int64_t>{16, 16, 16, 16}));
  for (int64_t rank = 1; rank < 4; ++rank)
    EXPECT_EQ(plan.foreign[static_cast<size_t>(rank)], std::vector<int64_t>{0});
}

// The rows of a helper come from every source, within a unit of each other.
TEST(LlepPlan, PiecesDrawOnAllSources) {
  Counts counts({.experts = 2,
                 .ranks = 2,
                 .top_k = 1,
                 .max_tokens = 64,
                 .leaves = 1,
                 .unit_rows = 4,
                 .alpha = 1,
                 .max_foreign = 1});
  counts.at(0, 0, 0) = counts.at(1, 0, 0) = 64;
  const LlepPlan plan = counts.Plan();
  int64_t from[2] = {};
  for (const LlepUnit& unit : plan.chunks[0].units) {
    for (int64_t source = 0; source < 2 && unit.rank == 1; ++source) {
      from[source] += SliceOf(counts.knobs, counts.values, unit, source).rows;
    }
  }
  EXPECT_EQ(from[0], 32);
  EXPECT_EQ(from[1], 32);
}

TEST(LlepPlan, SlicesFollowSourcesThenRoutes) {
  Counts counts(
      {.experts = 2, .ranks = 2, .top_k = 1, .max_tokens = 8, .leaves = 1, .unit_rows = 4});
  counts.at(0, 0, 1) = 5;
  counts.at(1, 0, 1) = 6;
  const LlepUnit units[] = {{1, 0, 0, 4, 1}, {1, 0, 4, 8, 1}, {1, 0, 8, 11, 1}};
  const int64_t expected[3][4] = {{0, 4, 0, 0}, {4, 1, 0, 3}, {5, 0, 3, 3}};
  for (size_t u = 0; u < 3; ++u) {
    const UnitSlice a = SliceOf(counts.knobs, counts.values, units[u], 0);
    const UnitSlice b = SliceOf(counts.knobs, counts.values, units[u], 1);
    EXPECT_EQ(a.rows, expected[u][1]);
    EXPECT_EQ(b.rows, expected[u][3]);
    EXPECT_EQ(a.rows > 0 ? a.first : expected[u][0], expected[u][0]);
    EXPECT_EQ(b.rows > 0 ? b.first : expected[u][2], expected[u][2]);
  }
}

// RTD-14: everything to one expert and nothing may be borrowed: chunks are cut until they fit.
TEST(LlepPlan, ChunksGrowInNumberRatherThanOverflow) {
  Counts counts({.experts = 8,
                 .ranks = 4,
                 .top_k = 2,
                 .max_tokens = 64,
                 .leaves = 8,
                 .unit_rows = 4,
                 .lambda = 1,
                 .alpha = 1});
  for (int64_t source = 0; source < 4; ++source) {
    for (int64_t leaf = 0; leaf < 8; ++leaf) counts.at(source, leaf, 5) = 16;
  }
  const LlepPlan plan = counts.Plan();  // checked against the bounds
  EXPECT_EQ(RowBound(counts.knobs), 2 * 64 + 4);
  EXPECT_EQ(plan.chunks.size(), 4u);  // of 2 leaves, 128 rows
  for (const LlepChunk& chunk : plan.chunks) EXPECT_EQ(chunk.received[2], 128);
}

// RTD-19: 100 rows of expert 0 split 60 / 40.
TEST(LlepPlan, SplitsOneExpertSixtyForty) {
  Counts counts({.experts = 2,
                 .ranks = 2,
                 .top_k = 1,
                 .max_tokens = 60,
                 .leaves = 1,
                 .unit_rows = 20,
                 .alpha = 1,
                 .max_foreign = 1});
  counts.at(0, 0, 0) = counts.at(1, 0, 0) = 50;
  counts.at(1, 0, 1) = 10;
  counts.knobs.alpha = 60.0 / 55;  // cap 60 of 110 rows
  const LlepPlan plan = counts.Plan();
  EXPECT_EQ(RowsOn(plan, 0, 0), 60);
  EXPECT_EQ(RowsOn(plan, 0, 1), 40);
}

// RTD-20 and its kin: hand-made plans that break a promise are refused.
TEST(LlepPlan, CheckRefusesBrokenPlans) {
  const Counts counts = Skewed();
  const LlepPlan good = counts.Plan();
  const auto error = [&](auto change) {
    LlepPlan plan = good;
    change(plan);
    return counts.Check(plan);
  };
  const auto expect = [&](const char* what, auto change) {
    EXPECT_NE(error(change).find(what), std::string::npos) << what << ": " << error(change);
  };
  EXPECT_EQ(error([](LlepPlan&) {}), "");
  expect("borrows 2 experts", [](LlepPlan& p) { p.foreign[1] = {0, 0}; });
  expect("its own or unknown", [](LlepPlan& p) { p.foreign[1] = {3}; });
  expect("without having it", [](LlepPlan& p) { p.foreign[1] = {1}; });
  expect("do not cut", [](LlepPlan& p) { p.chunks[0].units[1].begin -= 1; });
  expect("canonical order",
         [](LlepPlan& p) { std::swap(p.chunks[0].units[8], p.chunks[0].units[9]); });
  expect("do not cut", [](LlepPlan& p) { p.chunks[0].units.erase(p.chunks[0].units.begin()); });
  expect("are assigned",
         [](LlepPlan& p) { p.chunks[0].units.erase(p.chunks[0].units.begin() + 8); });
  expect("were routed", [](LlepPlan& p) { p.chunks.clear(); });
  expect("add up", [](LlepPlan& p) { p.chunks[0].received[0] += 1; });
  expect("out of order", [](LlepPlan& p) {
    std::vector<LlepUnit*> away;
    for (LlepUnit& unit : p.chunks[0].units) {
      if (unit.round >= 0) away.push_back(&unit);
    }
    std::swap(away[0]->round, away[1]->round);
  });
  Counts wide = counts;
  wide.knobs.max_foreign = 3;
  LlepPlan plan = wide.Plan();
  plan.foreign[0] = {2, 3, 3};
  EXPECT_NE(wide.Check(plan).find("rank 0 borrows an expert twice"), std::string::npos);
}

TEST(LlepPlan, RefusesCountsBeyondTheLaunch) {
  Counts counts({.experts = 2, .ranks = 1, .top_k = 2, .max_tokens = 4, .leaves = 2});
  counts.at(0, 1, 0) = 5;
  EXPECT_NE(ErrorOf([&] { counts.Plan(); }).find("rank 0 routes 5 rows of leaf 1, at most 4"),
            std::string::npos);
  counts.at(0, 1, 0) = -1;
  EXPECT_NE(ErrorOf([&] { counts.Plan(); }).find("a route count is -1"), std::string::npos);
  counts.values.pop_back();
  EXPECT_NE(ErrorOf([&] { counts.Plan(); }).find("counts"), std::string::npos);
}

// Tokens of a leaf route to k of E experts, drawn with weight (e+1)^-skew; ranks hold different
// token counts.
Counts Draw(std::mt19937& random) {
  const auto pick = [&](std::initializer_list<int64_t> of) {
    return std::data(of)[random() % of.size()];
  };
  LlepKnobs knobs;
  knobs.ranks = pick({1, 2, 3, 4, 8});
  knobs.experts = knobs.ranks + pick({0, 1, 3, 8, 24});
  knobs.top_k = pick({1, 2, 4});
  knobs.max_tokens = pick({1, 5, 16, 100, 400});
  knobs.leaves = pick({1, 3, 16});
  knobs.unit_rows = pick({1, 3, 16, 4096});
  knobs.chunk_tokens = pick({0, 1, 7, 64});
  knobs.max_chunks = pick({0, 0, 2, 5});
  knobs.lambda = std::data({1.0, 1.3, kInf})[random() % 3];
  knobs.alpha = std::data({1.0, 1.1, 2.0})[random() % 3];
  knobs.min_rows = pick({1, 4, 32});
  knobs.max_foreign = pick({0, 1, 2, 100});
  Counts counts(knobs);
  std::vector<double> weights;
  const double skew = std::data({0.0, 1.2, 5.0})[random() % 3];
  for (int64_t e = 0; e < knobs.experts; ++e)
    weights.push_back(std::pow(static_cast<double>(e + 1), -skew));
  std::discrete_distribution<int64_t> expert(weights.begin(), weights.end());
  for (int64_t source = 0; source < knobs.ranks; ++source) {
    const int64_t tokens =
        source == 0 ? knobs.max_tokens : static_cast<int64_t>(random()) % (knobs.max_tokens + 1);
    for (int64_t route = 0; route < tokens * knobs.top_k; ++route) {
      ++counts.at(source, route / knobs.top_k % knobs.leaves, expert(random));
    }
  }
  return counts;
}

TEST(LlepPlan, KeepsItsPromisesForRandomCounts) {
  std::mt19937 random(11);
  int64_t spilled = 0, cut = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    const Counts counts = Draw(random);
    const LlepPlan plan = counts.Plan();
    const LlepPlan again = counts.Plan();
    ASSERT_EQ(plan.foreign, again.foreign);
    const int64_t planned = ChunkSizesOf(counts.knobs).chunks;
    int64_t chunks = 0;
    for (const LlepChunk& chunk : plan.chunks) {
      ASSERT_LE(chunk.end_leaf - chunk.first_leaf, ChunkSizesOf(counts.knobs).leaves);
      chunks += chunk.rounds > 0 ? 1 : 0;
      // Balancing never leaves a rank fuller than plain placement would have made the fullest.
      std::vector<int64_t> native(chunk.received.size());
      for (const LlepUnit& unit : chunk.units)
        native[static_cast<size_t>(counts.knobs.Owner(unit.expert))] += unit.rows();
      ASSERT_LE(*std::max_element(chunk.received.begin(), chunk.received.end()),
                *std::max_element(native.begin(), native.end()));
    }
    spilled += chunks > 0 ? 1 : 0;
    cut += std::ssize(plan.chunks) > planned ? 1 : 0;
  }
  EXPECT_GT(spilled, 50);  // the draw reaches both mechanisms
  EXPECT_GT(cut, 2);
}

}  // namespace
}  // namespace weir
