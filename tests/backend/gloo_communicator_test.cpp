#include "backend/cpu/gloo_communicator.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <mutex>
#include <thread>

#include "backend/cpu/coordinator.h"
#include "backend/launcher.h"
#include "tests/backend/rank_cases.h"

namespace weir {
namespace {

using std::chrono::milliseconds;
namespace fs = std::filesystem;

// A machine with many jobs may leave a thread without its turn for a second.
constexpr CommOptions kPatient{.timeout = std::chrono::seconds(60), .start = std::chrono::seconds(60),
                               .beat = milliseconds(100), .silence = std::chrono::seconds(30)};

std::string RendezvousFile(const std::string& name) {
  const fs::path file = fs::path(testing::TempDir()) / ("weir-" + name + "-" + std::to_string(getpid()));
  fs::remove(file);
  return file;
}

RankEnvironment Rank(int64_t rank, int64_t world, const std::string& file) {
  return {.rank = rank, .world = world, .local_rank = rank, .local_size = world, .launcher = "weir", .host = "", .file = file};
}

// Ranks as threads of this process that talk through TCP. Returns what each ended with.
std::vector<std::string> RunGlooThreads(int64_t ranks, const CommOptions& options, const std::function<void(Communicator&)>& fn) {
  static int runs = 0;
  const std::string file = RendezvousFile("threads" + std::to_string(++runs));
  std::vector<std::string> texts(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int64_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      std::unique_ptr<Communicator> world;
      try {
        world = MakeGlooCommunicator(Rank(r, ranks, file), options);
        fn(*world);
      } catch (const std::exception& error) {
        texts[static_cast<size_t>(r)] = error.what();
        if (world) world->Abort(error.what());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return texts;
}

void ExpectQuiet(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) EXPECT_EQ(text, "");
}

class GlooThreads : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Worlds, GlooThreads, testing::Values(1, 2, 4, 8));

TEST_P(GlooThreads, RunEveryCollective) { ExpectQuiet(RunGlooThreads(GetParam(), kPatient, CheckAllCollectives)); }
TEST_P(GlooThreads, FormGroups) { ExpectQuiet(RunGlooThreads(GetParam(), kPatient, CheckGroups)); }
TEST_P(GlooThreads, AddInTreeOrder) { ExpectQuiet(RunGlooThreads(GetParam(), kPatient, CheckTreeReduce)); }

TEST(GlooCommunicator, ReportsARankThatNeverComesForEveryCollective) {
  CommOptions options = kPatient;
  options.timeout = milliseconds(1000);
  for (const CollectivePath& path : AllCollectivePaths()) {
    const auto start = std::chrono::steady_clock::now();
    const auto texts = RunGlooThreads(3, options, [&](Communicator& world) {
      if (world.rank() != 1) return path.call(world, 1);
      for (;;) {
        world.ThrowIfAborted();
        std::this_thread::sleep_for(milliseconds(5));
      }
    });
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    EXPECT_LT(elapsed.count(), 15) << path.name;
    const std::string all = texts[0] + texts[2];
    EXPECT_NE(all.find("waited 1 s for rank 1 (pid "), std::string::npos) << path.name << ": " << all;
    EXPECT_NE(all.find(", computing) to "), std::string::npos) << path.name << ": " << all;
    EXPECT_NE(all.find(" bytes of "), std::string::npos) << path.name << ": " << all;
    EXPECT_FALSE(texts[1].empty()) << path.name;
  }
}

TEST(GlooCommunicator, SpreadsTheFirstError) {
  const auto texts = RunGlooThreads(4, kPatient, [](Communicator& world) {
    if (world.rank() == 2) {
      std::this_thread::sleep_for(milliseconds(500));  // the others wait in the exchange by then, and can name it
      throw Error(ErrorCode::kIoError, "the disk of rank 2 is full");
    }
    world.GatherValues(int64_t{1}, {"AllGather", "labels"});
  });
  for (const std::string& text : texts) EXPECT_NE(text.find("the disk of rank 2 is full"), std::string::npos) << text;
  EXPECT_NE(texts[0].find("rank 2 failed"), std::string::npos) << texts[0];
  EXPECT_NE(texts[0].find("AllGather of 'labels'"), std::string::npos) << texts[0];
}

TEST(GlooCommunicator, NamesByteCountsThatDisagree) {
  const auto texts = RunGlooThreads(2, kPatient, [](Communicator& world) {
    std::vector<std::byte> mine(world.rank() == 0 ? 16 : 24), all(mine.size() * 2);
    world.AllGather(mine, all, {"AllGather", "x"});
  });
  // Whoever notices first.
  const std::string all = texts[0] + texts[1];
  EXPECT_TRUE(all.find("expects 16 bytes for AllGather of 'x' from rank 1, which sends 24 bytes") != std::string::npos ||
              all.find("expects 24 bytes for AllGather of 'x' from rank 0, which sends 16 bytes") != std::string::npos)
      << all;
}

TEST(GlooCommunicator, NamesTheRanksThatDoNotCome) {
  CommOptions options = kPatient;
  options.start = milliseconds(700);
  const std::string file = RendezvousFile("absent");
  const auto message = [&](const RankEnvironment& environment) -> std::string {
    try {
      MakeGlooCommunicator(environment, options);
      return "nothing thrown";
    } catch (const Error& error) {
      return error.what();
    }
  };
  const std::string alone = message(Rank(0, 3, file));
  EXPECT_NE(alone.find("rank 1, 2 of 3 did not come within 0.7 s"), std::string::npos) << alone;
  fs::remove(file);
  EXPECT_NE(message(Rank(1, 3, file)).find("rank 1 of 3 found no rank 0 at " + file), std::string::npos);
  RankEnvironment nowhere = Rank(1, 2, "");
  nowhere.host = "127.0.0.1";
  nowhere.port = 1;
  EXPECT_NE(message(nowhere).find("found no rank 0 at 127.0.0.1:1"), std::string::npos);
}

// A rank that dies after it has said where it listens: Gloo would wait for its call until --start-timeout.
TEST(GlooCommunicator, NoticesARankThatEndsWhileRanksConnect) {
  const std::string file = RendezvousFile("connect");
  std::thread dying([&] {
    Coordinator rank(Rank(1, 2, file), kPatient);
    std::string address = rank.Get("0");  // rank 0's own, with a larger port: rank 0 is then the one that is called
    address[2] = address[3] = '\xff';
    rank.Set("1", address);
    std::this_thread::sleep_for(milliseconds(300));
    rank.Abort("killed while ranks connect");
  });
  const auto start = std::chrono::steady_clock::now();
  try {
    MakeGlooCommunicator(Rank(0, 2, file), kPatient);
    ADD_FAILURE() << "connected to nobody";
  } catch (const PeerFailure& error) {
    EXPECT_NE(std::string(error.what()).find("rank 1 failed: killed while ranks connect"), std::string::npos) << error.what();
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_GT(elapsed.count(), 0.25) << "it was connecting";
  EXPECT_LT(elapsed.count(), 10);
  dying.join();
}

TEST(GlooCommunicator, RejectsARankOfAnotherWorld) {
  const std::string file = RendezvousFile("world");
  std::string texts[2];
  std::thread ranks[2];
  for (int64_t r = 0; r < 2; ++r) {
    ranks[r] = std::thread([&, r] {
      try {
        MakeGlooCommunicator(Rank(r, r == 0 ? 2 : 3, file), kPatient);
      } catch (const Error& error) {
        texts[r] = error.what();
      }
    });
  }
  for (auto& thread : ranks) thread.join();
  EXPECT_NE(texts[0].find("rank 1 failed: it was started as rank 1 of 3, rank 0 as one of 2"), std::string::npos) << texts[0];
  EXPECT_NE(texts[1].find("it was started as rank 1 of 3"), std::string::npos) << texts[1];
}

// Ranks as processes: this test starts itself `ranks` times through the launcher. In a rank it runs fn and
// exits; in the parent it returns how that went.
struct Outcome {
  int code = 0;
  std::string text;  // stderr of all ranks
  double seconds = 0;
};

constexpr int kOwnError = 5;

[[noreturn]] void BecomeRank(const CommOptions& options, const std::function<void(Communicator&)>& fn) {
  int code = 0;
  std::unique_ptr<Communicator> world;
  try {
    world = MakeGlooCommunicator(ReadRankEnvironment(ProcessVariables()), options);
    fn(*world);
  } catch (const PeerFailure& error) {
    std::cerr << error.what() << std::endl;
    code = kExitPeerFailed;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    if (world) world->Abort(error.what());
    code = kOwnError;
  }
  world.reset();
  std::exit(testing::Test::HasFailure() ? 1 : code);
}

Outcome RunProcesses(int64_t ranks, const CommOptions& options, const std::function<void(Communicator&)>& fn) {
  if (std::getenv("WEIR_RANK") != nullptr) BecomeRank(options, fn);
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  const auto start = std::chrono::steady_clock::now();
  testing::internal::CaptureStderr();
  Outcome outcome;
  outcome.code = LaunchRanks({.ranks = ranks,
                              .arguments = {"backend_test", StrCat("--gtest_filter=", test->test_suite_name(), ".", test->name())},
                              .grace = milliseconds(1500),
                              .silence = options.silence});
  outcome.text = testing::internal::GetCapturedStderr();
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

TEST(GlooProcesses, RunEveryCollective) {
  const Outcome outcome = RunProcesses(4, kPatient, [](Communicator& world) {
    CheckAllCollectives(world);
    CheckGroups(world);
  });
  EXPECT_EQ(outcome.code, 0) << outcome.text;
}

TEST(GlooProcesses, NoticeAKilledRank) {
  const Outcome outcome = RunProcesses(3, kPatient, [](Communicator& world) {
    world.Barrier({"Barrier", "start"});
    if (world.rank() == 1) kill(getpid(), SIGKILL);
    world.GatherValues(int64_t{1}, {"AllGather", "labels"});
  });
  EXPECT_EQ(outcome.code, 128 + SIGKILL) << outcome.text;
  EXPECT_LT(outcome.seconds, 10);
  EXPECT_NE(outcome.text.find("rank 1 failed: it was ended by signal 9 (Killed) (pid "), std::string::npos) << outcome.text;
  // Rank 0 may not have left the barrier yet.
  EXPECT_TRUE(outcome.text.find("rank 0 was in AllGather of 'labels' (world #2, 48 bytes)") != std::string::npos ||
              outcome.text.find("rank 0 was in Barrier of 'start' (world #1, 0 bytes)") != std::string::npos)
      << outcome.text;
  EXPECT_NE(outcome.text.find("was ended by signal 9"), std::string::npos) << outcome.text;
  EXPECT_NE(outcome.text.find("[2] CommError"), std::string::npos) << outcome.text;
}

// A rank that cannot go on, as when a file it has mapped is cut, says why on stderr and tells nobody.
TEST(GlooProcesses, NoticeARankThatExits) {
  const Outcome outcome = RunProcesses(2, kPatient, [](Communicator& world) {
    world.Barrier({"Barrier", "start"});
    SetPhase("step 7");
    if (world.rank() == 1) _exit(1);
    world.GatherValues(int64_t{1}, {"AllGather", "labels"});
  });
  EXPECT_EQ(outcome.code, 1) << outcome.text;
  EXPECT_NE(outcome.text.find("CommError: rank 1 failed: it ended with exit code 1 (pid "), std::string::npos) << outcome.text;
  EXPECT_EQ(outcome.text.find("last starting"), std::string::npos) << outcome.text;
}

TEST(GlooProcesses, NoticeTheDeathOfRank0) {
  const Outcome outcome = RunProcesses(2, kPatient, [](Communicator& world) {
    world.Barrier({"Barrier", "start"});
    if (world.rank() == 0) kill(getpid(), SIGKILL);
    world.GatherValues(int64_t{1}, {"AllGather", "labels"});
  });
  EXPECT_EQ(outcome.code, 128 + SIGKILL) << outcome.text;
  EXPECT_NE(outcome.text.find("[1] CommError: rank 0 failed: it was ended by signal 9 (Killed) (pid "), std::string::npos) << outcome.text;
}

TEST(GlooProcesses, NoticeAStoppedRank) {
  CommOptions options = kPatient;
  options.silence = milliseconds(2500);
  const Outcome outcome = RunProcesses(3, options, [](Communicator& world) {
    world.Barrier({"Barrier", "start"});
    if (world.rank() == 1) kill(getpid(), SIGSTOP);
    world.GatherValues(int64_t{1}, {"AllGather", "labels"});
  });
  EXPECT_NE(outcome.code, 0);
  EXPECT_LT(outcome.seconds, 20);
  EXPECT_NE(outcome.text.find("rank 1 failed: its heart has not beaten for "), std::string::npos) << outcome.text;
  EXPECT_NE(outcome.text.find("AllGather of 'labels'"), std::string::npos) << outcome.text;
  EXPECT_NE(outcome.text.find("[1] CommError: rank 1 was given up: its heart has not beaten for "), std::string::npos) << outcome.text;
  EXPECT_EQ(outcome.text.find("rank 0 failed"), std::string::npos) << outcome.text;
  EXPECT_EQ(outcome.text.find("SIGTERM"), std::string::npos) << "woken, it ends by itself: " << outcome.text;
}

TEST(GlooProcesses, NoticeAStoppedRank0) {
  CommOptions options = kPatient;
  options.silence = milliseconds(2500);
  const Outcome outcome = RunProcesses(2, options, [](Communicator& world) {
    world.Barrier({"Barrier", "start"});
    if (world.rank() == 0) kill(getpid(), SIGSTOP);
    world.GatherValues(int64_t{1}, {"AllGather", "labels"});
  });
  EXPECT_EQ(outcome.code, kOwnError);
  EXPECT_NE(outcome.text.find("[1] CommError: rank 0 failed: its heart has not beaten for 2.5 s"), std::string::npos) << outcome.text;
  EXPECT_NE(outcome.text.find("CommError: rank 0 was given up: it stood still for "), std::string::npos) << outcome.text;
  EXPECT_EQ(outcome.text.find("rank 1 failed"), std::string::npos) << outcome.text;
}

// As a scheduler suspends a job and goes on with it.
TEST(GlooProcesses, GoOnWhenAllWereStopped) {
  CommOptions options = kPatient;
  options.silence = milliseconds(2500);
  const Outcome outcome = RunProcesses(2, options, [](Communicator& world) {
    world.Barrier({"Barrier", "start"});
    EXPECT_EQ(std::system(StrCat("(sleep 3.5; kill -CONT ", getpid(), ") &").c_str()), 0);
    kill(getpid(), SIGSTOP);
    std::this_thread::sleep_for(milliseconds(500));
    EXPECT_EQ(world.GatherValues(world.rank(), {"AllGather", "labels"}), (std::vector<int64_t>{0, 1}));
  });
  EXPECT_EQ(outcome.code, 0) << outcome.text;
}

// What rank `lost` does before it has come; nothing in the process that starts the ranks.
void BeforeItComes(int64_t lost, const std::function<void()>& act) {
  const char* rank = std::getenv("WEIR_RANK");
  if (rank != nullptr && std::to_string(lost) == rank) act();
}

void ExpectKilledIsTold(int64_t lost) {
  BeforeItComes(lost, [] { kill(getpid(), SIGKILL); });
  const Outcome killed = RunProcesses(3, kPatient, [](Communicator&) {});
  EXPECT_EQ(killed.code, 128 + SIGKILL) << killed.text;
  EXPECT_LT(killed.seconds, 6) << killed.text;
  EXPECT_NE(killed.text.find(StrCat("CommError: rank ", lost, " failed: it was ended by signal 9 (Killed) (pid ")), std::string::npos) << killed.text;
  EXPECT_NE(killed.text.find(") before all ranks had come\n"), std::string::npos) << killed.text;
}

TEST(GlooProcesses, HearOfARankKilledBeforeItCame) { ExpectKilledIsTold(1); }
TEST(GlooProcesses, HearOfARank0KilledBeforeItCame) { ExpectKilledIsTold(0); }

TEST(GlooProcesses, HearOfARankThatFailsBeforeItCame) {
  BeforeItComes(1, [] { _exit(7); });
  const Outcome failed = RunProcesses(3, kPatient, [](Communicator&) {});
  EXPECT_EQ(failed.code, 7) << failed.text;
  EXPECT_LT(failed.seconds, 6) << failed.text;
  EXPECT_NE(failed.text.find("CommError: rank 1 failed: it ended with exit code 7 (pid "), std::string::npos) << failed.text;
}

// The ranks end by themselves: nobody is sent a signal.
void ExpectStoppedIsTold(int64_t lost) {
  CommOptions options = kPatient;
  options.silence = milliseconds(2000);
  BeforeItComes(lost, [] { kill(getpid(), SIGSTOP); });
  const Outcome stopped = RunProcesses(3, options, [](Communicator&) {});
  EXPECT_EQ(stopped.code, kOwnError) << stopped.text;
  EXPECT_LT(stopped.seconds, 8) << stopped.text;
  EXPECT_NE(stopped.text.find(StrCat("CommError: rank ", lost, " failed: it has been stopped for 2 s (pid ")), std::string::npos) << stopped.text;
  EXPECT_NE(stopped.text.find(StrCat("CommError: rank ", lost, " was given up: it has been stopped")), std::string::npos) << stopped.text;
  EXPECT_EQ(stopped.text.find("SIGTERM"), std::string::npos) << stopped.text;
}

TEST(GlooProcesses, HearOfARankStoppedBeforeItCame) { ExpectStoppedIsTold(1); }
TEST(GlooProcesses, HearOfARank0StoppedBeforeItCame) { ExpectStoppedIsTold(0); }

// As a scheduler suspends a job that has just begun.
TEST(GlooProcesses, ComeWhenAllWereStopped) {
  CommOptions options = kPatient;
  options.silence = milliseconds(1000);
  for (const int64_t rank : {0, 1}) {
    BeforeItComes(rank, [] {
      EXPECT_EQ(std::system(StrCat("(sleep 2.5; kill -CONT ", getpid(), ") &").c_str()), 0);
      kill(getpid(), SIGSTOP);
    });
  }
  const Outcome outcome = RunProcesses(2, options, [](Communicator& world) { world.Barrier({"Barrier", "start"}); });
  EXPECT_EQ(outcome.code, 0) << outcome.text;
}

TEST(GlooProcesses, EndWithTheCodeOfTheRankThatFailed) {
  const Outcome outcome = RunProcesses(3, kPatient, [](Communicator& world) {
    if (world.rank() == 2) throw Error(ErrorCode::kIoError, "no space left");
    world.Barrier({"Barrier", "save"});
  });
  EXPECT_EQ(outcome.code, kOwnError) << outcome.text;
  EXPECT_NE(outcome.text.find("rank 2 failed: IoError: no space left"), std::string::npos) << outcome.text;
  EXPECT_NE(outcome.text.find("[2] IoError: no space left"), std::string::npos) << outcome.text;
}

}  // namespace
}  // namespace weir
