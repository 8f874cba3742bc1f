// AllGatherRows between ranks that are threads.
#include <gtest/gtest.h>

#include <numeric>

#include "backend/cpu/thread_communicator.h"
#include "backend/plan.h"
#include "graph/error.h"
#include "graph/layout.h"
#include "tests/kernels/op_harness.h"

namespace weir {
namespace {

std::unique_ptr<OpGraph> Gather(int64_t held, int64_t ranks, int64_t rows) {
  auto graph = MakeOpGraph(GetOp("AllGatherRows"), {"", {{.dims = {held, 2}}}, {{"group", std::string("world")}, {"ranks", ranks}, {"rows", rows}}},
                           false, false);
  graph->graph.outputs = {graph->node->out()};
  return graph;
}

TEST(AllGatherRows, JoinsUnevenShares) {
  for (const auto& [ranks, rows] : {std::pair{2, 6}, {3, 7}, {4, 5}, {4, 2}, {2, 0}}) {
    RunRanks(ranks, [&](Communicator& world) {
      world.SetLayout({.world = ranks});
      const Share share = ShareOf(rows, ranks, world.rank());
      const auto graph = Gather(share.size(), ranks, rows);
      const Plan plan = MakePlan(graph->graph, DeviceKind::kCpu);
      Executor executor(plan, {.poison = true, .communicator = &world});
      float* x = executor.TensorOf(*graph->inputs[0]).data<float>();
      std::iota(x, x + 2 * share.size(), static_cast<float>(2 * share.begin));
      executor.Run();
      const Tensor y = executor.TensorOf(*graph->node->out());
      ASSERT_EQ(y.dims, (Dims{rows, 2}));
      for (int64_t k = 0; k < y.elements(); ++k) ASSERT_EQ(y.data<float>()[k], static_cast<float>(k)) << "rank " << world.rank();
    });
  }
}

TEST(AllGatherRows, RefusesWhatIsNoShare) {
  EXPECT_THROW(Gather(4, 2, 6), Error);
  EXPECT_THROW(Gather(3, 0, 6), Error);
  const auto graph = Gather(3, 2, 6);
  const Plan plan = MakePlan(graph->graph, DeviceKind::kCpu);
  Executor executor(plan);
  EXPECT_THROW(executor.Run(), Error);  // without ranks
}

}  // namespace
}  // namespace weir
