#include "backend/launcher.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "backend/rank_environment.h"
#include "graph/error.h"

namespace weir {
namespace {

using std::chrono::milliseconds;

struct Outcome {
  int code = 0;
  std::string text;
  double seconds = 0;
};

Outcome Shell(int64_t ranks, const std::string& script, milliseconds grace = milliseconds(300), milliseconds when_lost = std::chrono::seconds(4)) {
  const auto start = std::chrono::steady_clock::now();
  testing::internal::CaptureStderr();
  Outcome outcome;
  outcome.code = LaunchRanks({.ranks = ranks, .program = "/bin/sh", .arguments = {"sh", "-c", script}, .grace = grace, .grace_when_lost = when_lost});
  outcome.text = testing::internal::GetCapturedStderr();
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a rank was left behind";
  return outcome;
}

TEST(Launcher, TellsEveryRankItsPlaceAndPrefixesItsLines) {
  const Outcome outcome = Shell(3, "printf 'rank %s of %s\\n  at %s' $WEIR_RANK $WEIR_WORLD_SIZE $(basename $WEIR_RENDEZVOUS) >&2");
  EXPECT_EQ(outcome.code, 0);
  for (const char* line : {"rank 0 of 3\n  at rank0", "[1] rank 1 of 3\n[1]   at rank0\n", "[2] rank 2 of 3\n[2]   at rank0\n"}) {
    EXPECT_NE(outcome.text.find(line), std::string::npos) << outcome.text;
  }
}

TEST(Launcher, TellsTheSameWordsOnce) {
  const auto count = [](const std::string& text, const std::string& what) {
    int found = 0;
    for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++found;
    return found;
  };
  const Outcome all = Shell(6, "echo 'no such file' >&2; exit 2");
  EXPECT_EQ(all.text, "no such file\n") << "rank 0 speaks for all";
  EXPECT_EQ(all.code, 2);
  const Outcome others = Shell(6, "if [ $WEIR_RANK != 0 ]; then echo 'not mine' >&2; echo rank $WEIR_RANK >&2; fi");
  EXPECT_EQ(count(others.text, "not mine"), 1) << others.text;
  EXPECT_NE(others.text.find("[1-5] not mine\n"), std::string::npos) << others.text;
  for (int rank = 1; rank < 6; ++rank) EXPECT_EQ(count(others.text, StrCat("[", rank, "] rank ", rank, "\n")), 1) << others.text;
  const Outcome twice = Shell(2, "if [ $WEIR_RANK = 1 ]; then echo again >&2; echo again >&2; fi");
  EXPECT_EQ(twice.text, "[1] again\n[1] again\n") << "one rank's own repetitions are its own";
}

TEST(Launcher, EndsTheOthersWhenOneFails) {
  const Outcome outcome = Shell(3, "if [ $WEIR_RANK = 1 ]; then exit 7; fi; exec sleep 100");
  EXPECT_EQ(outcome.code, 7);
  EXPECT_LT(outcome.seconds, 10);
  EXPECT_NE(outcome.text.find("rank 2"), std::string::npos) << outcome.text;
}

TEST(Launcher, KillsRanksThatIgnoreSigterm) {
  const Outcome outcome = Shell(2, "if [ $WEIR_RANK = 0 ]; then exit 3; fi; trap '' TERM; while :; do sleep 0.1; done");
  EXPECT_EQ(outcome.code, 3);
  EXPECT_LT(outcome.seconds, 10);
}

TEST(Launcher, EndsAStoppedRankWithoutKillingIt) {
  const Outcome outcome = Shell(2, "if [ $WEIR_RANK = 0 ]; then exit 3; fi; trap 'echo heard >&2; exit 0' TERM; kill -STOP $$; while :; do sleep 0.05; done",
                                milliseconds(2000));
  EXPECT_EQ(outcome.code, 3);
  EXPECT_NE(outcome.text.find("heard"), std::string::npos) << outcome.text;
  EXPECT_EQ(outcome.text.find("killing"), std::string::npos) << outcome.text;
}

TEST(Launcher, WakesAStoppedRankAtTheFirstFailure) {
  const Outcome outcome = Shell(2, "if [ $WEIR_RANK = 1 ]; then exit 69; fi; kill -STOP $$; echo awake >&2; exit 3", milliseconds(20000));
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.text, "awake\n");
  EXPECT_LT(outcome.seconds, 5);
}

TEST(Launcher, WakesARankThatStopsAfterTheFirstFailure) {
  const Outcome outcome = Shell(2, "if [ $WEIR_RANK = 1 ]; then exit 69; fi; sleep 0.5; kill -STOP $$; echo awake >&2; exit 3", milliseconds(20000));
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.text, "awake\n");
  EXPECT_LT(outcome.seconds, 8);
}

// Rank 0 may be saving; the others have nothing to save when one was lost.
TEST(Launcher, WaitsForRank0AloneWhenARankIsLost) {
  for (const char* end : {"kill -KILL $$", "exit 69"}) {
    const Outcome outcome = Shell(3, StrCat("if [ $WEIR_RANK = 1 ]; then ", end, "; fi; if [ $WEIR_RANK = 0 ]; then sleep 1; exit 69; fi; exec sleep 100"),
                                  milliseconds(20000), milliseconds(200));
    EXPECT_LT(outcome.seconds, 5);
    EXPECT_NE(outcome.text.find("rank 2"), std::string::npos) << outcome.text;
    EXPECT_EQ(outcome.text.find("rank 0"), std::string::npos) << outcome.text;
  }
  const Outcome failed = Shell(2, "if [ $WEIR_RANK = 0 ]; then exit 75; fi; sleep 1", milliseconds(20000), milliseconds(200));
  EXPECT_EQ(failed.text, "") << "ended by itself: all have time";
}

TEST(Launcher, ReportsASignalAsShellsDo) {
  const Outcome outcome = Shell(2, "if [ $WEIR_RANK = 1 ]; then kill -SEGV $$; fi; exit 69");
  EXPECT_EQ(outcome.code, 128 + SIGSEGV);
  EXPECT_NE(outcome.text.find("was ended by signal 11"), std::string::npos) << outcome.text;
}

TEST(Launcher, PrefersTheCodeOfTheRankThatFailedByItself) {
  EXPECT_EQ(Shell(3, "if [ $WEIR_RANK = 2 ]; then sleep 0.2; exit 4; fi; exit 69", milliseconds(5000)).code, 4);
  EXPECT_EQ(Shell(2, "exit 69").code, 1);
}

TEST(Launcher, PassesSignalsOn) {
  // In a process of one thread, as the launcher demands: other threads of this program do not block signals.
  const pid_t launcher = fork();
  if (launcher == 0) {
    // Rank 0 asks for the signal when rank 1 is known to catch it.
    const char* script = "trap 'exit 75' USR1; ready=$(dirname $WEIR_RENDEZVOUS)/ready; "
                         "if [ $WEIR_RANK = 1 ]; then : > $ready; else while [ ! -e $ready ]; do sleep 0.05; done; kill -USR1 $PPID; fi; "
                         "while :; do sleep 0.05; done";
    _exit(LaunchRanks({.ranks = 2, .program = "/bin/sh", .arguments = {"sh", "-c", script}}));
  }
  int status = 0;
  ASSERT_EQ(waitpid(launcher, &status, 0), launcher);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 75);
}

TEST(Launcher, SaysWhenTheProgramCannotStart) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(LaunchRanks({.ranks = 1, .program = "/nonexistent", .arguments = {"x"}}), 127);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("could not be started: /nonexistent"), std::string::npos);
}

TEST(Launcher, RemovesItsFolder) {
  const std::filesystem::path note = std::filesystem::path(testing::TempDir()) / ("weir-note-" + std::to_string(getpid()));
  EXPECT_EQ(Shell(1, "dirname $WEIR_RENDEZVOUS > " + note.string()).code, 0);
  std::string folder;
  std::getline(std::ifstream(note) >> std::ws, folder);
  EXPECT_FALSE(folder.empty());
  EXPECT_FALSE(std::filesystem::exists(folder)) << folder;
  std::filesystem::remove(note);
}

}  // namespace
}  // namespace weir
