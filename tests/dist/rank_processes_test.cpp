// What tests of several GPUs stand on, without a GPU.
#include <unistd.h>

#include "graph/error.h"
#include "tests/kernels/gpu_ranks.h"

namespace weir {
namespace {

TEST(RankProcesses, RunTheTestOnceForEachRankAndGatherWhatEachHas) {
  if (StartedRanks(3)) return;
  for (int meeting = 0; meeting < 2; ++meeting) {
    RunOwnRank(3, [&](Communicator& host) {
      const auto own = static_cast<float>(host.rank());
      Array<float> floats = Array<float>::Floats({1, host.rank()}, own), ints = Array<float>::Ints({2}, DType::kInt64, host.rank());
      const auto all = GatherArrays(host, {floats, ints});
      ASSERT_EQ(all.size(), 3u);
      for (int64_t r = 0; r < 3; ++r) {
        const auto& arrays = all[static_cast<size_t>(r)];
        ASSERT_EQ(arrays.size(), 2u);
        EXPECT_EQ(arrays[0].dims, (Dims{1, r}));
        EXPECT_EQ(arrays[0].f, std::vector<float>(static_cast<size_t>(r), static_cast<float>(r)));
        EXPECT_EQ(arrays[1].dtype, DType::kInt64);
        EXPECT_EQ(arrays[1].i, std::vector<int64_t>(2, r));
      }
      const auto processes = host.GatherValues(static_cast<int64_t>(getpid()), {"Gather", "processes"});
      EXPECT_NE(processes[0], processes[1]);
    });
  }
}

TEST(RankProcesses, AFailureReachesTheOthersWithItsWords) {
  if (StartedRanks(2)) return;
  try {
    RunOwnRank(2, [](Communicator& host) {
      WEIR_CHECK(host.rank() == 0, ErrorCode::kIoError, "the disk of rank 1 is full");
      host.Barrier({"Barrier", "end"});
    });
    FAIL() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("the disk of rank 1 is full"), std::string::npos) << error.what();
  }
}

TEST(RankProcesses, AreAskedForFirst) {
  EXPECT_THROW(RunOwnRank(2, [](Communicator&) {}), Error);
}

}  // namespace
}  // namespace weir
