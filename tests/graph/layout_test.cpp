#include "graph/layout.h"

#include <gtest/gtest.h>

#include "graph/error.h"

namespace weir {
namespace {

using Ranks = std::vector<int64_t>;

TEST(Layout, GivesRunsOfConsecutiveRanksAndTheirReplicas) {
  const Layout layout{.world = 8, .expert_parallel = 4, .vocabulary_parallel = 2, .context_parallel = 8};
  struct Row {
    const char* group;
    int64_t rank;
    Ranks members;
  };
  const Row rows[] = {
      {"world", 3, {0, 1, 2, 3, 4, 5, 6, 7}},
      {"expert", 0, {0, 1, 2, 3}},
      {"expert", 6, {4, 5, 6, 7}},
      {"replica", 6, {2, 6}},
      {"vocabulary", 5, {4, 5}},
      {"vocabulary_replica", 5, {1, 3, 5, 7}},
      {"context", 5, {0, 1, 2, 3, 4, 5, 6, 7}},
      {"context_replica", 5, {5}},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(layout.Members(row.group, row.rank), row.members) << row.group << " of rank " << row.rank;
    EXPECT_EQ(layout.GroupSize(row.group), static_cast<int64_t>(row.members.size())) << row.group;
  }
}

TEST(Layout, HoldsOneRankWithoutParallelism) {
  for (const char* group : {"world", "expert", "replica", "vocabulary", "context"}) {
    EXPECT_EQ(Layout{}.Members(group, 0), Ranks{0}) << group;
  }
}

TEST(Layout, ReportsEveryDegreeThatDoesNotDivideTheWorld) {
  const Layout layout{.world = 6, .expert_parallel = 4, .vocabulary_parallel = 3, .context_parallel = 0};
  try {
    layout.Validate();
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(error.message().find("--expert-parallel=4 does not divide 6 ranks"), std::string::npos) << error.message();
    EXPECT_NE(error.message().find("--context-parallel=0 is not positive"), std::string::npos) << error.message();
    EXPECT_EQ(error.message().find("--vocab-parallel"), std::string::npos) << error.message();
  }
  EXPECT_THROW((Layout{.world = 0}).Validate(), Error);
  EXPECT_THROW(Layout{}.Members("experts", 0), Error);
}

// LNC-07: three experts on two ranks: the first owns one more; five ranks: two own none.
TEST(Layout, DealsUnevenShares) {
  const auto sizes = [](int64_t count, int64_t parts) {
    Ranks result;
    int64_t next = 0;
    for (int64_t i = 0; i < parts; ++i) {
      const Share share = ShareOf(count, parts, i);
      EXPECT_EQ(share.begin, next);
      next = share.end;
      result.push_back(share.size());
    }
    EXPECT_EQ(next, count);
    return result;
  };
  EXPECT_EQ(sizes(3, 2), (Ranks{2, 1}));
  EXPECT_EQ(sizes(3, 5), (Ranks{1, 1, 1, 0, 0}));
  EXPECT_EQ(sizes(8, 4), (Ranks{2, 2, 2, 2}));
  EXPECT_EQ(sizes(0, 2), (Ranks{0, 0}));
}

}  // namespace
}  // namespace weir
