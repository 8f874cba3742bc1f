// NcclCommunicator over fake GPUs: order, groups, health. The real ones are in nccl_test.cpp.
#include "backend/cuda/nccl_communicator.h"

#include <gtest/gtest.h>

#include <array>

#include "backend/cpu/thread_communicator.h"
#include "graph/error.h"
#include "tests/dist/fake_gpu.h"
#include "tests/dist/transfer_cases.h"

namespace weir {
namespace {

using std::chrono::milliseconds;
constexpr NcclWatch::Times kPatient{.timeout = std::chrono::minutes(1), .interval = milliseconds(5)};
constexpr NcclWatch::Times kHasty{.timeout = milliseconds(200), .interval = milliseconds(5)};

// Runs work(gpus, device) on every rank.
void OnFakeGpus(int64_t ranks, FakeFabric& fabric, const std::function<void(Communicator&, FakeGpu&)>& work,
                NcclWatch::Times times = kPatient) {
  RunRanks(ranks, [&](Communicator& host) {
    FakeGpu gpu(milliseconds(1));
    NcclCommunicator gpus(host, FakeLinks(gpu, fabric), times);
    work(gpus, gpu);
    gpu.Synchronize();
    host.Barrier({"Barrier", "end"});
  });
}

struct Failure {
  std::string text;
  ErrorCode code = ErrorCode::kInternal;
  bool peer = false;
  double seconds = 0;
};

// What each rank's work ended with.
std::vector<Failure> Failures(int64_t ranks, FakeFabric& fabric, const std::function<void(Communicator&, FakeGpu&)>& work,
                              NcclWatch::Times times = kPatient) {
  std::vector<Failure> failures(static_cast<size_t>(ranks));
  const auto start = std::chrono::steady_clock::now();
  const auto noted = [&](Communicator& gpus, FakeGpu& gpu) {
    std::this_thread::sleep_for(milliseconds(50));  // until all have left the start: a failure would meet them there
    try {
      work(gpus, gpu);
      ADD_FAILURE() << "rank " << gpus.rank() << " ended in peace";
    } catch (const Error& error) {
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
      failures[static_cast<size_t>(gpus.rank())] = {error.what(), error.code(), dynamic_cast<const PeerFailure*>(&error) != nullptr,
                                                    elapsed.count()};
      throw;
    }
  };
  EXPECT_THROW(OnFakeGpus(ranks, fabric, noted, times), Error);
  return failures;
}

// What a training step does when a rank has failed: its queue runs dry, then it looks.
void Finish(Communicator& gpus, FakeGpu& gpu) {
  gpu.Synchronize();
  gpus.ThrowIfAborted();
}

class FakeRanks : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Worlds, FakeRanks, testing::Values(2, 4));

TEST_P(FakeRanks, Transfer) {
  FakeFabric fabric;
  OnFakeGpus(GetParam(), fabric, CheckDeviceTransfers);
  EXPECT_EQ(fabric.links, 0);
  EXPECT_EQ(fabric.aborted, 0) << "a good run was aborted at its end";
}
TEST_P(FakeRanks, KeepTheOrderOfTheQueues) {
  FakeFabric fabric;
  OnFakeGpus(GetParam(), fabric, CheckDeviceOrder);
}
TEST_P(FakeRanks, ExchangeMessages) {
  FakeFabric fabric;
  OnFakeGpus(GetParam(), fabric, CheckDeviceMessages);
}
TEST_P(FakeRanks, ExchangeManyMessagesWithAPeer) {
  FakeFabric fabric;
  OnFakeGpus(GetParam(), fabric, CheckDeviceManyMessages);
}
TEST_P(FakeRanks, FormGroups) {
  FakeFabric fabric;
  std::atomic<int> links = 0;
  OnFakeGpus(GetParam(), fabric, [&](Communicator& gpus, FakeGpu& gpu) {
    CheckDeviceGroups(gpus, gpu);
    gpus.host().Barrier({"Barrier", "groups"});
    links = fabric.links.load();
    gpus.host().Barrier({"Barrier", "counted"});
  });
  // World and expert group, and at four ranks the replicas; groups that are the world use its link.
  EXPECT_EQ(links, GetParam() == 2 ? 4 : 12);
}
TEST_P(FakeRanks, RefuseWrongUse) {
  FakeFabric fabric;
  OnFakeGpus(GetParam(), fabric, CheckDeviceWrongUse);
}

TEST(FakeRank, AloneCopies) {
  FakeFabric fabric;
  OnFakeGpus(1, fabric, [](Communicator& gpus, FakeGpu& gpu) {
    std::byte *from = gpu.Allocate(5), *to = gpu.Allocate(5), got[5] = {};
    gpu.Fill(from, 7, 5);
    gpus.AllGather({from, 5}, {to, 5}, {"AllGather", "x"});
    gpu.Download(got, to, 5);
    for (const std::byte b : got) EXPECT_EQ(b, std::byte{7});
    gpu.Free(from, 5);
    gpu.Free(to, 5);
  });
}

// Outlives the ranks: a transfer that was given up may still write.
struct Buffers {
  std::byte own[8] = {}, all[32] = {};
  std::span<std::byte> Of(const Communicator& ranks) { return std::span(all).first(8 * static_cast<size_t>(ranks.size())); }
};

// Rank 1 never comes to the second exchange. Rank 0 says who waits in what, and its queue does not hang.
TEST(NcclHealth, ATransferThatNeverEndsIsNamed) {
  FakeFabric fabric;
  Buffers buffers[4];
  const auto failures = Failures(2, fabric, [&](Communicator& gpus, FakeGpu& gpu) {
    for (int64_t times = 0; times < 2 - gpus.rank(); ++times) {
      Buffers& b = buffers[gpus.rank()];
      gpus.AllGather(b.own, b.Of(gpus), {"AllGather", "layer 3"});
    }
    if (gpus.rank() == 0) return Finish(gpus, gpu);
    for (;;) gpus.ThrowIfAborted();
  }, kHasty);
  EXPECT_LT(failures[0].seconds, 3);
  EXPECT_LT(failures[1].seconds, 3);
  EXPECT_NE(failures[0].text.find("rank 0: AllGather of 'layer 3' (world, 32 bytes) is not over after 0.2 s"), std::string::npos)
      << failures[0].text;
  EXPECT_EQ(failures[0].code, ErrorCode::kCommError);
  EXPECT_TRUE(failures[1].peer);
  EXPECT_NE(failures[1].text.find("rank 0 failed"), std::string::npos) << failures[1].text;
  EXPECT_EQ(fabric.aborted, 2);
}

// The same where a rank waits while enqueueing.
TEST(NcclHealth, AMoveThatDoesNotComeBackIsNamed) {
  FakeFabric fabric;
  Buffers buffers[4];
  fabric.stuck = 0;
  const auto failures = Failures(2, fabric, [&](Communicator& gpus, FakeGpu& gpu) {
    Buffers& b = buffers[gpus.rank()];
    gpus.AllGather(b.own, b.Of(gpus), {"AllGather", "layer 3"});
    gpu.Synchronize();
    for (;;) gpus.ThrowIfAborted();
  }, kHasty);
  const std::string said = failures[0].text + failures[1].text;
  EXPECT_LT(failures[0].seconds, 3);
  EXPECT_NE(said.find("AllGather of 'layer 3' (world, 32 bytes) is not over after 0.2 s"), std::string::npos) << said;
  EXPECT_NE(failures[0].text.find("rank 0 was in AllGather of 'layer 3'"), std::string::npos) << failures[0].text;
}

// Without names the GPUs would swap the two tensors, which have the same size.
TEST(NcclHealth, RanksInDifferentExchangesSayWhich) {
  FakeFabric fabric;
  Buffers buffers[4];
  const auto failures = Failures(2, fabric, [&](Communicator& gpus, FakeGpu& gpu) {
    Buffers& b = buffers[gpus.rank()];
    for (const char* tensor : gpus.rank() == 0 ? std::array{"a", "b", "c"} : std::array{"a", "c", "b"}) {
      gpus.AllGather(b.own, b.Of(gpus), {"AllGather", tensor});
    }
    Finish(gpus, gpu);
  });
  const std::string said = failures[0].text + failures[1].text;
  EXPECT_TRUE(said.find("for AllGather of 'b' from rank 1, which sends 16 bytes of AllGather of 'c'") != std::string::npos ||
              said.find("for AllGather of 'c' from rank 0, which sends 16 bytes of AllGather of 'b'") != std::string::npos)
      << said;
  for (const Failure& failure : failures) EXPECT_LT(failure.seconds, 3) << failure.text;
}

TEST(NcclHealth, RanksThatDisagreeAboutBytesSayHowMany) {
  FakeFabric fabric;
  Buffers buffers[4];
  const auto failures = Failures(2, fabric, [&](Communicator& gpus, FakeGpu&) {
    Buffers& b = buffers[gpus.rank()];
    const Communicator::Outgoing out{1 - gpus.rank(), std::span(b.own).first(gpus.rank() == 0 ? 8 : 6)};
    const Communicator::Incoming in{1 - gpus.rank(), std::span(b.all).first(8)};
    gpus.Wait(gpus.StartExchange({&out, 1}, {&in, 1}, {"Exchange", "x"}));
    gpus.host().Barrier({"Barrier", "after"});
  });
  for (const Failure& failure : failures) {  // in its own words, or in those of the rank that noticed first
    EXPECT_TRUE(failure.text.find("rank 0 expects 8 bytes from rank 1, which sends 6") != std::string::npos ||
                failure.text.find("sends it 6 where it expects 8") != std::string::npos)
        << failure.text;
  }
}

// Waiting behind long compute work is no lateness.
TEST(NcclHealth, AQueueThatComputesForLongIsNotLate) {
  FakeFabric fabric;
  Buffers buffers[4];
  OnFakeGpus(2, fabric, [&](Communicator& gpus, FakeGpu& gpu) {
    Buffers& b = buffers[gpus.rank()];
    for (int i = 0; i < 1500; ++i) gpu.Fill(b.own, 1, 8);  // 1 ms each, on both ranks
    gpus.AllGather(b.own, b.Of(gpus), {"AllGather", "x"});
    Finish(gpus, gpu);
    EXPECT_EQ(b.all[15], std::byte{1});
  }, {.timeout = milliseconds(1000), .interval = milliseconds(5)});
}

TEST(NcclHealth, WhatOneLinkReportsEndsAllRanks) {
  FakeFabric fabric;
  Buffers buffers[4];
  const auto failures = Failures(4, fabric, [&](Communicator& gpus, FakeGpu& gpu) {
    Buffers& b = buffers[gpus.rank()];
    if (gpus.rank() == 2) {
      std::this_thread::sleep_for(milliseconds(300));  // until the others wait in the exchange
      const std::lock_guard lock(fabric.mutex);
      fabric.problems[2] = "NCCL: remote process exited or there was a network error";
    } else {
      gpus.AllGather(b.own, b.Of(gpus), {"AllGather", "x"});
    }
    gpu.Synchronize();
    for (;;) gpus.ThrowIfAborted();
  });
  for (size_t r = 0; r < 4; ++r) {
    EXPECT_LT(failures[r].seconds, 3);
    EXPECT_EQ(failures[r].peer, r != 2);
    EXPECT_NE(failures[r].text.find("rank 2: NCCL: remote process exited"), std::string::npos) << failures[r].text;
    if (r != 2) {
      EXPECT_NE(failures[r].text.find("rank " + std::to_string(r) + " was in AllGather of 'x'"), std::string::npos) << failures[r].text;
    }
  }
}

TEST(NcclHealth, AnErrorOfTheHostsEndsTheTransfers) {
  FakeFabric fabric;
  Buffers buffers[4];
  const auto failures = Failures(2, fabric, [&](Communicator& gpus, FakeGpu& gpu) {
    Buffers& b = buffers[gpus.rank()];
    if (gpus.rank() == 1) throw Error(ErrorCode::kIoError, "the disk of rank 1 is full");
    gpus.AllGather(b.own, b.Of(gpus), {"AllGather", "x"});
    Finish(gpus, gpu);
  });
  EXPECT_LT(failures[0].seconds, 3);
  EXPECT_TRUE(failures[0].peer);
  EXPECT_NE(failures[0].text.find("the disk of rank 1 is full"), std::string::npos) << failures[0].text;
}

TEST(NcclHealth, ATicketThatIsDroppedEndsAll) {
  FakeFabric fabric;
  Buffers buffers[4];
  const auto failures = Failures(2, fabric, [&](Communicator& gpus, FakeGpu& gpu) {
    Buffers& b = buffers[gpus.rank()];
    {
      const std::vector<int64_t> counts = {8, 8};
      auto ticket = gpus.StartAllGatherV(b.own, b.Of(gpus), counts, {"AllGather", "x"});
      if (gpus.rank() == 0) gpus.Wait(std::move(ticket));
    }
    gpu.Synchronize();
    for (;;) gpus.ThrowIfAborted();
  });
  EXPECT_NE(failures[1].text.find("gave up in AllGather of 'x'"), std::string::npos) << failures[1].text;
  EXPECT_TRUE(failures[0].peer);
}

TEST(NcclHealth, NothingStartsAfterAnAbort) {
  FakeFabric fabric;
  Buffers buffers[4];
  const auto failures = Failures(2, fabric, [&](Communicator& gpus, FakeGpu&) {
    gpus.Abort("enough");
    Buffers& b = buffers[gpus.rank()];
    EXPECT_THROW(gpus.StartSend(1 - gpus.rank(), 0, b.own, {"Send", "x"}), Error);
    EXPECT_THROW(gpus.Group("expert"), Error);
    gpus.AllGather(b.own, b.Of(gpus), {"AllGather", "x"});
  });
  for (const Failure& failure : failures) EXPECT_NE(failure.text.find("enough"), std::string::npos) << failure.text;
}

// A mark of the queue beside holds up the compute queue until what was begun there before is over.
TEST_P(FakeRanks, WaitForWhatWasBegunBeside) {
  FakeFabric fabric;
  RunRanks(GetParam(), [&](Communicator& host) {
    FakeGpu gpu, side(milliseconds(20));
    NcclCommunicator gpus(host, FakeLinks(gpu, fabric), kPatient, FakeLinks(side, fabric));
    const auto ranks = static_cast<size_t>(gpus.size());
    std::vector<std::byte> own(8), all(8 * ranks), seen, expected;
    for (size_t r = 0; r < ranks; ++r) expected.insert(expected.end(), 8, static_cast<std::byte>(r + 1));
    for (int again = 0; again < 2; ++again) {
      std::ranges::fill(all, std::byte{0});
      side.Fill(own.data(), static_cast<int>(gpus.rank()) + 1, 8);  // slow, on the queue beside
      gpus.Beside().AllGather(own, all, {"AllGather", "own"});
      gpus.MarkBeside(3);
      gpus.OrderAfterBeside(3);
      gpu.compute().Push([&] { seen = all; });
      gpu.Synchronize();
      EXPECT_EQ(seen, expected) << "rank " << gpus.rank();
    }
    side.Synchronize();
    host.Barrier({"Barrier", "end"});
  });
}

}  // namespace
}  // namespace weir
