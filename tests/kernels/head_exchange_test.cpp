// SequenceToHeads and HeadsToSequence between ranks that are threads: who gets which row, and the transpose.
#include <gtest/gtest.h>

#include <complex>

#include "backend/plan.h"
#include "graph/error.h"
#include "kernels/head_exchange/exchange.h"
#include "tests/kernels/head_exchange_harness.h"
#include "tests/kernels/op_harness.h"

namespace weir {
namespace {

using Case = HeadExchangeCase;

// d(sum over ranks of y . dy)/dx by the complex step.
template <class Function>
PerRank<double> ComplexStep(const PerRank<double>& x, const PerRank<double>& dy, const Function& function) {
  constexpr double kStep = 1e-30;
  PerRank<std::complex<double>> z(x.size());
  for (size_t r = 0; r < x.size(); ++r) z[r].assign(x[r].begin(), x[r].end());
  PerRank<double> dx = x;
  for (size_t r = 0; r < x.size(); ++r) {
    for (size_t k = 0; k < x[r].size(); ++k) {
      z[r][k] += std::complex<double>(0, kStep);
      const auto y = function(z);
      double sum = 0;
      for (size_t p = 0; p < y.size(); ++p) {
        for (size_t i = 0; i < y[p].size(); ++i) sum += y[p][i].imag() / kStep * dy[p][i];
      }
      dx[r][k] = sum;
      z[r][k] = x[r][k];
    }
  }
  return dx;
}

// Moves are exact; a sum of at most 4 replicas is rounded thrice.
void ExpectNear(const PerRank<float>& got, const PerRank<double>& want, const char* what) {
  for (size_t r = 0; r < want.size(); ++r) {
    ASSERT_EQ(got[r].size(), want[r].size()) << what;
    for (size_t k = 0; k < want[r].size(); ++k) ASSERT_NEAR(got[r][k], want[r][k], 4e-6) << what << " rank " << r << " [" << k << "]";
  }
}

class HeadExchange : public testing::TestWithParam<Case> {};

TEST_P(HeadExchange, GivesEachRankItsHeadsAndBackTheTranspose) {
  const Case& c = GetParam();
  const auto part = Draw(c, c.part_size(), 1), heads = Draw(c, c.heads_size(), 2);
  const HeadExchangeResult there = RunHeadExchange(c, "SequenceToHeads", part, heads);
  ExpectNear(there.y, ToHeads(c, part), "y of SequenceToHeads");
  ExpectNear(there.dx, ComplexStep(part, heads, [&](const auto& x) { return ToHeads(c, x); }), "dx of SequenceToHeads");
  const HeadExchangeResult back = RunHeadExchange(c, "HeadsToSequence", heads, part);
  ExpectNear(back.y, ToSequence(c, heads), "y of HeadsToSequence");
  ExpectNear(back.dx, ComplexStep(heads, part, [&](const auto& x) { return ToSequence(c, x); }), "dx of HeadsToSequence");
}

INSTANTIATE_TEST_SUITE_P(Cases, HeadExchange,
                         testing::Values(Case{"even", 2, 4}, Case{"one_each", 4, 4}, Case{"one_piece", 2, 6, 1, 4, 5, 100},
                                         Case{"replicas", 4, 2}, Case{"one_head", 4, 1}, Case{"three_ranks", 3, 6},
                                         Case{"one_token", 2, 2, 3, 1, 1, 1}, Case{"no_rows", 2, 2, 0}, Case{"alone", 1, 3},
                                         Case{"shared", 4, 2, 2, 5, 3, 2, 2}, Case{"shared_kv", 4, 1, 2, 4, 3, 2, 2},
                                         Case{"shared_by_all", 3, 2, 1, 4, 3, 100, 3}, Case{"shared_by_three", 6, 4, 1, 2, 2, 2, 3}),
                         [](const auto& info) { return std::string(info.param.name); });

INSTANTIATE_TEST_SUITE_P(Dealt, HeadExchange,
                         testing::Values(Case{"even_groups", 4, 4, 2, 6, 3, 2, 2, true}, Case{"odd_groups", 6, 3, 1, 6, 2, 2, 2, true},
                                         Case{"one_group", 3, 2, 2, 4, 3, 100, 3, true}, Case{"four_shares", 8, 2, 1, 4, 2, 1, 4, true},
                                         Case{"two_ranks", 2, 1, 2, 2, 3, 1, 2, true}, Case{"no_rows", 4, 2, 0, 2, 3, 2, 2, true}),
                         [](const auto& info) { return std::string(info.param.name); });

// Every share of the rows costs the same under a causal mask.
TEST(HeadExchangeDeal, SharesAreBalanced) {
  for (const int64_t sharing : {2, 3, 4}) {
    const Case c{"", 12, 12, 1, 10, 1, 1, sharing, true};
    std::vector<int64_t> pairs;
    for (int64_t rank = 0; rank < sharing; ++rank) {
      const RowDeal deal{HeadShare{c.ranks, c.heads, sharing}, true, c.tokens};
      EXPECT_EQ(deal.rows(), std::ssize(c.positions(rank)));
      pairs.push_back(0);
      for (const int64_t position : c.positions(rank)) pairs.back() += position + 1;
    }
    for (const int64_t of_rank : pairs) EXPECT_EQ(of_rank, pairs[0]) << sharing;
  }
}

// Any piece: the same bytes.
TEST(HeadExchangeBits, DoNotDependOnThePiece) {
  Case c{"", 4, 2, 2, 7, 3, 7};
  const auto part = Draw(c, c.part_size(), 1), heads = Draw(c, c.heads_size(), 2);
  const HeadExchangeResult whole = RunHeadExchange(c, "HeadsToSequence", heads, part);
  for (const int64_t piece : {1, 3, 4}) {
    c.piece = piece;
    const HeadExchangeResult cut = RunHeadExchange(c, "HeadsToSequence", heads, part);
    EXPECT_EQ(cut.y, whole.y) << piece;
    EXPECT_EQ(cut.dx, whole.dx) << piece;
  }
}

TEST(HeadExchangeBits, OfSharedHeadsDoNotDependOnThePiece) {
  for (const bool deal : {false, true}) {
    Case c{"", 4, 2, 2, 14, 3, 14, 2, deal};
    const auto part = Draw(c, c.part_size(), 1), heads = Draw(c, c.heads_size(), 2);
    const HeadExchangeResult whole = RunHeadExchange(c, "HeadsToSequence", heads, part);
    for (const int64_t piece : {1, 3, 4}) {
      c.piece = piece;
      const HeadExchangeResult cut = RunHeadExchange(c, "HeadsToSequence", heads, part);
      EXPECT_EQ(cut.y, whole.y) << piece;
      EXPECT_EQ(cut.dx, whole.dx) << piece;
    }
  }
}

std::string InferError(const std::string& op, const Dims& dims, Attributes attributes) {
  try {
    MakeOpGraph(GetOp(op), {"", {{.dims = dims}}, std::move(attributes)}, false, false);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(HeadExchangeInfer, RefusesWhatCannotBeSpread) {
  const auto two = [](int64_t heads) { return Attributes{{"ranks", int64_t{2}}, {"heads", heads}}; };
  EXPECT_NE(InferError("SequenceToHeads", {1, 4, 3, 2}, {{"ranks", int64_t{2}}}).find("C2: 3 heads cannot be spread evenly over 2 ranks"),
            std::string::npos);
  EXPECT_NE(InferError("SequenceToHeads", {1, 4, 3}, {{"ranks", int64_t{2}}}).find("C3"), std::string::npos);
  EXPECT_NE(InferError("SequenceToHeads", {1, 4, 2, 2}, {{"ranks", int64_t{0}}}).find("C1"), std::string::npos);
  EXPECT_NE(InferError("HeadsToSequence", {1, 4, 2, 2}, two(2)).find("C4"), std::string::npos);
  EXPECT_NE(InferError("HeadsToSequence", {1, 5, 1, 2}, two(2)).find("C5"), std::string::npos);
  const auto shared = [](int64_t ranks, int64_t sharing, int64_t deal) { return Attributes{{"ranks", ranks}, {"sharing", sharing}, {"deal", deal}}; };
  EXPECT_NE(InferError("SequenceToHeads", {1, 4, 3, 2}, shared(4, 2, 0)).find("C2: 3 heads cannot be spread evenly over 4 ranks, 2 of which hold the same"),
            std::string::npos);
  EXPECT_NE(InferError("SequenceToHeads", {1, 4, 3, 2}, shared(4, 3, 0)).find("C2"), std::string::npos);
  EXPECT_NE(InferError("SequenceToHeads", {1, 4, 2, 2}, shared(8, 2, 1)).find("C6"), std::string::npos);
  EXPECT_NE(InferError("SequenceToHeads", {1, 4, 2, 2}, shared(2, 1, 1)).find("C6"), std::string::npos);
  EXPECT_NE(InferError("SequenceToHeads", {1, 5, 2, 2}, shared(4, 2, 1)).find("C7: parts of 5 tokens cannot be halved; the whole sequence must be a multiple of 2*ranks = 8"),
            std::string::npos);
}

TEST(HeadExchangeLaunch, NeedsItsRanks) {
  auto graph = MakeOpGraph(GetOp("SequenceToHeads"), {"", {{.dims = {1, 4, 2, 2}}}, {{"ranks", int64_t{2}}}}, false, false);
  graph->graph.outputs = {graph->node->out()};
  const Plan plan = MakePlan(graph->graph, DeviceKind::kCpu);
  Executor executor(plan);
  EXPECT_THROW(executor.Run(), Error);
}

}  // namespace
}  // namespace weir
