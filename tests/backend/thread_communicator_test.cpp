#include "backend/cpu/thread_communicator.h"

#include <gtest/gtest.h>

#include <thread>

#include "backend/cpu/parallel.h"
#include "graph/layout.h"
#include "backend/tree_reduce.h"
#include "tests/backend/rank_cases.h"

namespace weir {
namespace {

using std::chrono::milliseconds;

struct Failure {
  std::string text;
  ErrorCode code = ErrorCode::kInternal;
  bool peer = false;
  double seconds = 0;
};

// Runs fn on every rank and returns what each rank's thread ended with ("" = nothing thrown).
std::vector<Failure> Failures(int64_t ranks, milliseconds timeout, const std::function<void(Communicator&)>& fn) {
  std::vector<Failure> failures(static_cast<size_t>(ranks));
  const auto start = std::chrono::steady_clock::now();
  const auto body = [&](Communicator& world) {
    Failure& failure = failures[static_cast<size_t>(world.rank())];
    const auto note = [&](const Error& error, bool peer) {
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
      failure = {error.what(), error.code(), peer, elapsed.count()};
    };
    try {
      fn(world);
    } catch (const PeerFailure& error) {
      note(error, true);
      throw;
    } catch (const Error& error) {
      note(error, false);
      throw;
    }
  };
  try {
    RunRanks(ranks, body, timeout);
  } catch (const Error&) {
  }
  return failures;
}

class ThreadRanks : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Worlds, ThreadRanks, testing::Values(1, 2, 4, 8));

TEST_P(ThreadRanks, RunEveryCollective) { RunRanks(GetParam(), CheckAllCollectives); }
TEST_P(ThreadRanks, FormGroups) { RunRanks(GetParam(), CheckGroups); }
TEST_P(ThreadRanks, AddInTreeOrder) { RunRanks(GetParam(), CheckTreeReduce); }

// LNC-04 (and -Wconversion where ranks talk, backend/CMakeLists.txt): messages longer than the transport's limit travel in pieces.
TEST(ThreadCommunicator, SplitsLongMessages) {
  auto communicators = MakeThreadCommunicators(3, milliseconds(60000), /*max_message=*/7);
  std::vector<std::thread> threads;
  for (auto& communicator : communicators) threads.emplace_back([&] { CheckAllCollectives(*communicator); });
  for (auto& thread : threads) thread.join();
}

TEST(ThreadRanks3, AddInTreeOrder) { RunRanks(3, CheckTreeReduce); }

TEST(ThreadCommunicator, WakesAllRanksWhenOneThrows) {
  const auto failures = Failures(4, milliseconds(60000), [](Communicator& world) {
    if (world.rank() == 2) throw Error(ErrorCode::kIoError, "the disk of rank 2 is full");
    world.GatherValues(int64_t{1}, {"AllGather", "labels"});
  });
  for (size_t r = 0; r < failures.size(); ++r) {
    EXPECT_LT(failures[r].seconds, 2) << r;
    EXPECT_NE(failures[r].text.find("the disk of rank 2 is full"), std::string::npos) << failures[r].text;
    EXPECT_EQ(failures[r].peer, r != 2);
    if (r == 2) continue;
    EXPECT_NE(failures[r].text.find("rank 2 failed"), std::string::npos) << failures[r].text;
    EXPECT_NE(failures[r].text.find("AllGather of 'labels' (world #1"), std::string::npos) << failures[r].text;
  }
}

TEST(ThreadCommunicator, RethrowsTheErrorOfTheRankThatFailedFirst) {
  try {
    RunRanks(4, [](Communicator& world) {
      if (world.rank() == 3) throw Error(ErrorCode::kInvalidShape, "mine");
      world.Barrier({"Barrier", "b"});
    });
    FAIL() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidShape);
    EXPECT_EQ(error.message(), "mine");
  }
}

TEST(ThreadCommunicator, StopsRanksThatComputeWhenAskedBetweenSteps) {
  const auto failures = Failures(2, milliseconds(60000), [](Communicator& world) {
    if (world.rank() == 0) throw Error(ErrorCode::kIoError, "gone");
    for (;;) world.ThrowIfAborted();
  });
  EXPECT_LT(failures[1].seconds, 2);
  EXPECT_TRUE(failures[1].peer);
}

// One rank computes on and never comes: the others say who, what and how many bytes, after the timeout.
TEST(ThreadCommunicator, ReportsARankThatNeverComesForEveryCollective) {
  for (const CollectivePath& path : AllCollectivePaths()) {
    const auto failures = Failures(4, milliseconds(200), [&](Communicator& world) {
      if (world.rank() != 1) return path.call(world, 1);
      for (;;) {
        world.ThrowIfAborted();
        std::this_thread::sleep_for(milliseconds(5));
      }
    });
    std::string all;
    for (size_t r = 0; r < failures.size(); ++r) {
      EXPECT_LT(failures[r].seconds, 3) << path.name;
      EXPECT_EQ(failures[r].code, ErrorCode::kCommError) << path.name << " rank " << r << ": " << failures[r].text;
      all += failures[r].text;
    }
    EXPECT_NE(all.find("waited 0.2 s for rank 1 (computing)"), std::string::npos) << path.name << ": " << all;
    EXPECT_NE(all.find(" bytes of "), std::string::npos) << all;
  }
}

TEST(ThreadCommunicator, ReportsARankThatFinishedEarly) {
  for (const CollectivePath& path : AllCollectivePaths()) {
    const auto failures = Failures(2, milliseconds(60000), [&](Communicator& world) {
      if (world.rank() == 0) path.call(world, 1);
    });
    EXPECT_LT(failures[0].seconds, 2) << path.name;
    EXPECT_NE(failures[0].text.find("rank 1 has finished"), std::string::npos) << path.name << failures[0].text;
  }
}

TEST(ThreadCommunicator, NamesRanksThatStandInDifferentCollectives) {
  const auto failures = Failures(2, milliseconds(60000), [](Communicator& world) {
    world.Barrier({world.rank() == 0 ? "Barrier" : "Save", "step 3"});
  });
  const std::string all = failures[0].text + failures[1].text;
  EXPECT_NE(all.find("Save"), std::string::npos) << all;
  EXPECT_NE(all.find("the ranks run different graphs"), std::string::npos) << all;
}

TEST(ThreadCommunicator, NamesByteCountsThatDisagree) {
  const auto failures = Failures(2, milliseconds(60000), [](Communicator& world) {
    std::vector<std::byte> mine(world.rank() == 0 ? 16 : 24), all(mine.size() * 2);
    world.AllGather(mine, all, {"AllGather", "x"});
  });
  const std::string all = failures[0].text + failures[1].text;
  EXPECT_NE(all.find("expects 16 bytes for AllGather of 'x' from rank 1, which sends 24 bytes"), std::string::npos)
      << all;
}

TEST(ThreadCommunicator, RejectsWrongUse) {
  RunRanks(1, [](Communicator& world) {
    std::vector<std::byte> bytes(8);
    const std::vector<int64_t> one = {8}, wrong = {7}, negative = {-8}, two = {4, 4};
    EXPECT_THROW(world.AllToAllV(bytes, wrong, bytes, one, {"op", "x"}), Error);
    EXPECT_THROW(world.AllToAllV(bytes, one, bytes, two, {"op", "x"}), Error);
    EXPECT_THROW(world.AllToAllV(bytes, negative, bytes, one, {"op", "x"}), Error);
    EXPECT_THROW(world.Broadcast(1, bytes, {"op", "x"}), Error);
    EXPECT_THROW(world.Send(0, 0, bytes, {"op", "x"}), Error);  // to itself
    EXPECT_THROW(world.Group("expert"), Error);                 // no layout
    EXPECT_THROW(world.SetLayout({.world = 2}), Error);
    std::vector<float> data(4);
    const std::vector<int64_t> slices = {0, 3};
    EXPECT_THROW(TreeReduce(world, data, slices, bytes, Destination::kAll, {"op", "x"}), Error);
    EXPECT_THROW(TreeReduce(world, data, {}, {"op", "x"}), Error);
  });
}

TEST(ThreadCommunicator, LetsRanksShareTheWorkers) {
  SetCpuThreads(2);
  RunRanks(4, [](Communicator&) {
    for (int repeat = 0; repeat < 200; ++repeat) {
      std::vector<int64_t> values(1000);
      ParallelFor(1000, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) values[static_cast<size_t>(i)] += i;
      });
      for (int64_t i = 0; i < 1000; ++i) ASSERT_EQ(values[static_cast<size_t>(i)], i);
    }
  });
}

}  // namespace
}  // namespace weir
