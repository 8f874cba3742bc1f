// Sizes and bounds of expert dispatch, and its knobs.
#include <gtest/gtest.h>

#include <limits>

#include "kernels/llep/plan.h"
#include "tests/kernels/run_op.h"

namespace weir {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(LlepSizes, MatchHandArithmetic) {
  const auto sizes = [](int64_t tokens, int64_t leaves, int64_t chunk, int64_t most) {
    const ChunkSizes s = ChunkSizesOf(
        {.max_tokens = tokens, .leaves = leaves, .chunk_tokens = chunk, .max_chunks = most});
    return std::vector<int64_t>{s.leaf_tokens, s.leaves, s.chunks, s.tokens};
  };
  using V = std::vector<int64_t>;
  EXPECT_EQ(sizes(1600, 16, 400, 0), (V{100, 4, 4, 400}));
  EXPECT_EQ(sizes(1600, 16, 399, 0), (V{100, 3, 6, 300}));  // whole leaves only
  EXPECT_EQ(sizes(1600, 16, 50, 0), (V{100, 1, 16, 100}));  // one leaf exceeds c
  EXPECT_EQ(sizes(1600, 16, 100, 3), (V{100, 6, 3, 600}));  // K_max binds
  EXPECT_EQ(sizes(1600, 16, 0, 0), (V{100, 16, 1, 1600}));
  EXPECT_EQ(sizes(1601, 16, 5000, 0), (V{101, 16, 1, 1616}));
  EXPECT_EQ(sizes(3, 16, 2, 0), (V{1, 2, 8, 2}));  // fewer tokens than leaves
  EXPECT_EQ(sizes(0, 16, 2, 0), (V{0, 2, 8, 0}));
}

// RTD-05: K follows from the launch ceiling, so ranks of 7 and of 1 token agree on 3 chunks.
TEST(LlepSizes, NoticeSaysWhyChunksAreLarger) {
  LlepKnobs knobs{.max_tokens = 1600, .leaves = 16, .chunk_tokens = 400};
  EXPECT_EQ(ChunkNotice(knobs), "");
  knobs.chunk_tokens = 50;
  EXPECT_EQ(ChunkNotice(knobs),
            "chunks hold 100 tokens, not the 50 asked for: one of 16 leaves has 100");
  knobs.max_chunks = 3;
  EXPECT_EQ(ChunkNotice(knobs),
            "chunks hold 600 tokens, not the 50 asked for: at most 3 chunks are allowed");
  knobs.chunk_tokens = 0;
  EXPECT_EQ(ChunkNotice(knobs), "");
}

TEST(LlepSizes, BoundsMatchHandArithmetic) {
  LlepKnobs knobs{.ranks = 8, .top_k = 2, .max_tokens = 1600, .leaves = 16, .chunk_tokens = 800};
  knobs.experts = 8;
  knobs.alpha = 1.25;
  knobs.lambda = 1.5;
  EXPECT_EQ(PlainRowBound(knobs), 8 * 2 * 800);
  EXPECT_EQ(BalancedRowBound(knobs), 2000 + 8);
  EXPECT_EQ(RowBound(knobs), 2400 + 8);  // plain chunks may be 1.5 times the mean
  knobs.chunk_tokens = 100;              // one leaf may come to one rank whole
  EXPECT_EQ(RowBound(knobs), 8 * 2 * 100);
  knobs.lambda = kInf;
  EXPECT_EQ(RowBound(knobs), PlainRowBound(knobs));
  knobs.ranks = 1;
  EXPECT_EQ(RowBound(knobs), 2 * 100);
}

TEST(LlepSizes, InfiniteFactorsAndNoTokensAreThePlainBound) {
  LlepKnobs knobs = {.experts = 8, .ranks = 2, .top_k = 2, .max_tokens = 32, .alpha = INFINITY};
  EXPECT_EQ(BalancedRowBound(knobs), PlainRowBound(knobs));
  knobs.max_tokens = 0;
  EXPECT_EQ(BalancedRowBound(knobs), 0);
  EXPECT_EQ(RowBound(knobs), 0);
}

TEST(LlepSizes, FirstRanksOwnOneExpertMore) {
  const LlepKnobs knobs{.experts = 8, .ranks = 3};
  std::vector<int64_t> owners, first;
  for (int64_t expert = 0; expert < 8; ++expert) owners.push_back(knobs.Owner(expert));
  for (int64_t rank = 0; rank <= 3; ++rank) first.push_back(knobs.FirstExpert(rank));
  EXPECT_EQ(owners, (std::vector<int64_t>{0, 0, 0, 1, 1, 1, 2, 2}));
  EXPECT_EQ(first, (std::vector<int64_t>{0, 3, 6, 8}));
  EXPECT_EQ((LlepKnobs{.experts = 3, .ranks = 2}.Owner(2)), 1);
}

TEST(LlepSizes, ValidateListsEveryWrongKnob) {
  const std::string error = ErrorOf([] {
    LlepKnobs{.experts = 1, .ranks = 2, .lambda = 0.5, .alpha = kInf, .min_rows = 0}.Validate();
  });
  for (const char* part : {"experts is 1", "lambda is 0.5", "alpha is inf", "min_rows is 0"}) {
    EXPECT_NE(error.find(part), std::string::npos) << error;
  }
  EXPECT_EQ(ErrorOf([] { LlepKnobs{.lambda = kInf}.Validate(); }), "");
}

}  // namespace
}  // namespace weir
