// SequenceToHeads and HeadsToSequence between ranks that are threads: who gets which row, and the transpose.
#include <gtest/gtest.h>

#include <complex>
#include <random>

#include "backend/cpu/thread_communicator.h"
#include "backend/plan.h"
#include "graph/error.h"
#include "graph/layout.h"
#include "tests/kernels/op_harness.h"

namespace weir {
namespace {

struct Case {
  const char* name;
  int64_t ranks, heads, batch = 2, tokens = 5, channels = 3, piece = 2;
  int64_t held() const { return heads < ranks ? 1 : heads / ranks; }
  int64_t part_size() const { return batch * tokens * heads * channels; }
  int64_t heads_size() const { return batch * ranks * tokens * held() * channels; }
  // Element of a rank's part and of a rank's heads.
  size_t Part(int64_t b, int64_t s, int64_t h, int64_t d) const {
    return static_cast<size_t>(((b * tokens + s) * heads + h) * channels + d);
  }
  size_t Heads(int64_t b, int64_t s, int64_t j, int64_t d) const {
    return static_cast<size_t>(((b * ranks * tokens + s) * held() + j) * channels + d);
  }
};

template <class T>
using PerRank = std::vector<std::vector<T>>;

// The definition, for every rank: rank r holds heads r*heads/ranks and on, of all positions.
template <class T>
PerRank<T> ToHeads(const Case& c, const PerRank<T>& x) {
  PerRank<T> y(x.size(), std::vector<T>(static_cast<size_t>(c.heads_size())));
  for (int64_t r = 0; r < c.ranks; ++r)
    for (int64_t b = 0; b < c.batch; ++b)
      for (int64_t s = 0; s < c.ranks * c.tokens; ++s)
        for (int64_t j = 0; j < c.held(); ++j)
          for (int64_t d = 0; d < c.channels; ++d) {
            const auto owner = static_cast<size_t>(s / c.tokens);
            y[static_cast<size_t>(r)][c.Heads(b, s, j, d)] = x[owner][c.Part(b, s % c.tokens, r * c.heads / c.ranks + j, d)];
          }
  return y;
}

template <class T>
PerRank<T> ToSequence(const Case& c, const PerRank<T>& x) {
  PerRank<T> y(x.size(), std::vector<T>(static_cast<size_t>(c.part_size())));
  for (int64_t r = 0; r < c.ranks; ++r)
    for (int64_t b = 0; b < c.batch; ++b)
      for (int64_t s = 0; s < c.ranks * c.tokens; ++s)
        for (int64_t j = 0; j < c.held(); ++j)
          for (int64_t d = 0; d < c.channels; ++d) {
            const auto owner = static_cast<size_t>(s / c.tokens);
            y[owner][c.Part(b, s % c.tokens, r * c.heads / c.ranks + j, d)] += x[static_cast<size_t>(r)][c.Heads(b, s, j, d)];
          }
  return y;
}

PerRank<double> Draw(const Case& c, int64_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  PerRank<double> values(static_cast<size_t>(c.ranks));
  for (auto& rank : values) {
    for (int64_t k = 0; k < size; ++k) rank.push_back(normal(random));
  }
  return values;
}

struct Outcome {
  PerRank<float> y, dx;
};

// The op and its gradient's nodes on one thread per rank, over poisoned arenas.
Outcome RunOnRanks(const Case& c, const std::string& op, const PerRank<double>& x, const PerRank<double>& dy) {
  Outcome run;
  run.y.resize(x.size());
  run.dx.resize(x.size());
  Attributes attributes = {{"group", std::string("context")}, {"ranks", c.ranks}, {"piece", c.piece}};
  const Dims part = {c.batch, c.tokens, c.heads, c.channels}, heads = {c.batch, c.ranks * c.tokens, c.held(), c.channels};
  const bool to_heads = op == "SequenceToHeads";
  if (!to_heads) attributes.Set("heads", c.heads);
  RunRanks(c.ranks, [&](Communicator& world) {
    const OpCase one{"", {{.dims = to_heads ? part : heads}}, attributes};
    world.SetLayout({.world = c.ranks, .context_parallel = c.ranks});
    auto graph = MakeOpGraph(GetOp(op), one, /*gradient=*/true, /*as_parameters=*/false);
    graph->graph.outputs = {graph->node->out(), graph->input_gradients[0]};
    const Plan plan = MakePlan(graph->graph, DeviceKind::kCpu);
    Executor executor(plan, {.poison = true, .communicator = &world});
    const auto rank = static_cast<size_t>(world.rank());
    const auto write = [&](const Value* value, const std::vector<double>& values) {
      std::ranges::copy(values, executor.TensorOf(*value).data<float>());
    };
    const auto read = [&](const Value* value) {
      const Tensor tensor = executor.TensorOf(*value);
      return std::vector<float>(tensor.data<float>(), tensor.data<float>() + tensor.elements());
    };
    write(graph->inputs[0], x[rank]);
    write(graph->output_gradients[0], dy[rank]);
    executor.Run();
    run.y[rank] = read(graph->node->out());
    run.dx[rank] = read(graph->input_gradients[0]);
  });
  return run;
}

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
  const Outcome there = RunOnRanks(c, "SequenceToHeads", part, heads);
  ExpectNear(there.y, ToHeads(c, part), "y of SequenceToHeads");
  ExpectNear(there.dx, ComplexStep(part, heads, [&](const auto& x) { return ToHeads(c, x); }), "dx of SequenceToHeads");
  const Outcome back = RunOnRanks(c, "HeadsToSequence", heads, part);
  ExpectNear(back.y, ToSequence(c, heads), "y of HeadsToSequence");
  ExpectNear(back.dx, ComplexStep(heads, part, [&](const auto& x) { return ToSequence(c, x); }), "dx of HeadsToSequence");
}

INSTANTIATE_TEST_SUITE_P(Cases, HeadExchange,
                         testing::Values(Case{"even", 2, 4}, Case{"one_each", 4, 4}, Case{"one_piece", 2, 6, 1, 4, 5, 100},
                                         Case{"replicas", 4, 2}, Case{"one_head", 4, 1}, Case{"three_ranks", 3, 6},
                                         Case{"one_token", 2, 2, 3, 1, 1, 1}, Case{"no_rows", 2, 2, 0}, Case{"alone", 1, 3}),
                         [](const auto& info) { return std::string(info.param.name); });

// Any piece: the same bytes.
TEST(HeadExchangeBits, DoNotDependOnThePiece) {
  Case c{"", 4, 2, 2, 7, 3, 7};
  const auto part = Draw(c, c.part_size(), 1), heads = Draw(c, c.heads_size(), 2);
  const Outcome whole = RunOnRanks(c, "HeadsToSequence", heads, part);
  for (const int64_t piece : {1, 3, 4}) {
    c.piece = piece;
    const Outcome cut = RunOnRanks(c, "HeadsToSequence", heads, part);
    EXPECT_EQ(cut.y, whole.y) << piece;
    EXPECT_EQ(cut.dx, whole.dx) << piece;
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
