// The folder of `weir bench step --save-every`: made where there is room, and gone however the bench ends.
#include <signal.h>

#include <chrono>
#include <thread>

#include "graph/error.h"
#include "tests/cli/commands.h"

namespace weir {
namespace {

class BenchFolders : public Cli {
 protected:
  std::string Step(const std::string& more) const {
    return "bench step " + kModel + " --sequence 32 --micro-batch 2 --save-every 1 --threads 1 " + more;
  }
  // Starts a bench without end and waits until it has saved.
  pid_t StartSaving(const std::string& more, const fs::path& saved) const {
    const pid_t child = fork();
    if (child == 0) {
      const std::string command = StrCat("export TMPDIR=", folder_.string(), "; exec " WEIR_PROGRAM " ", Step("--steps 1000000 " + more), " >", Log().string(), " 2>&1");
      execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      _exit(127);
    }
    for (int i = 0; i < 6000 && !HoldsCheckpoint(saved); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_TRUE(HoldsCheckpoint(saved)) << Slurp(Log());
    return child;
  }
  static int Stop(pid_t child, int signal) {
    kill(child, signal);
    int status = 0;
    waitpid(child, &status, 0);
    return status;
  }
  int StopOnceSaved(const std::string& more, const fs::path& saved, int signal) const { return Stop(StartSaving(more, saved), signal); }
  // In the folder, or in one that begins so.
  static bool HoldsCheckpoint(const fs::path& folder) {
    std::error_code absent;
    for (const auto& entry : fs::directory_iterator(folder.parent_path(), absent)) {
      const bool ours = entry.path().filename().string().starts_with(folder.filename().string());
      if (ours && fs::exists(entry.path() / "checkpoints", absent) && !fs::is_empty(entry.path() / "checkpoints", absent)) return true;
    }
    return false;
  }
  bool IsGone(const fs::path& folder) const {
    for (const auto& entry : fs::directory_iterator(folder.parent_path())) {
      if (entry.path().filename().string().starts_with(folder.filename().string())) return false;
    }
    return true;
  }
  fs::path Log() const { return folder_ / "log"; }
};

TEST_F(BenchFolders, IsRemovedWhenASignalEndsTheBench) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const int status = StopOnceSaved("--out " + (folder_ / "bench").string(), folder_ / "bench", signal);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
    EXPECT_TRUE(IsGone(folder_ / "bench"));
    EXPECT_NE(Slurp(Log()).find(StrCat("stopped by signal ", signal, "; '", (folder_ / "bench").string(), "' is removed")), std::string::npos) << Slurp(Log());
  }
}

TEST_F(BenchFolders, OfItsOwnIsRemovedToo) {
  const int status = StopOnceSaved("", folder_ / "weir_bench_step_", SIGTERM);
  EXPECT_TRUE(WIFSIGNALED(status)) << status;
  EXPECT_TRUE(IsGone(folder_ / "weir_bench_step_")) << Slurp(Log());
}

TEST_F(BenchFolders, OfRanksIsRemovedToo) {
  const int status = StopOnceSaved("--ranks 2 --out " + (folder_ / "bench").string(), folder_ / "bench", SIGTERM);
  EXPECT_NE(status, 0);
  EXPECT_TRUE(IsGone(folder_ / "bench")) << Slurp(Log());
}

// Nothing can be done when it is killed: the next one does, and leaves alone what another bench is using.
TEST_F(BenchFolders, OfAKilledBenchIsRemovedByTheNext) {
  const std::string temporary = StrCat("TMPDIR=", folder_.string(), " ");
  const pid_t alive = StartSaving("", folder_ / "weir_bench_step_");
  const fs::path its = folder_ / StrCat("weir_bench_step_", alive);
  EXPECT_TRUE(WIFSIGNALED(StopOnceSaved("--out " + (folder_ / "bench").string(), folder_ / "bench", SIGKILL)));
  EXPECT_FALSE(IsGone(folder_ / "bench"));
  const auto run = [&](const std::string& more) {
    std::system(StrCat(temporary, WEIR_PROGRAM " ", Step("--steps 2 " + more), " >", Log().string(), " 2>&1").c_str());
    return Slurp(Log());
  };
  const std::string again = run("--out " + (folder_ / "bench").string());
  EXPECT_NE(again.find(StrCat("notice: '", (folder_ / "bench").string(), "', left by a bench that was killed, is removed")), std::string::npos) << again;
  EXPECT_NE(again.find("s a step"), std::string::npos) << again;
  EXPECT_TRUE(IsGone(folder_ / "bench"));
  EXPECT_TRUE(HoldsCheckpoint(its)) << "it is in use: " << again;
  EXPECT_TRUE(WIFSIGNALED(Stop(alive, SIGKILL)));
  const std::string own = run("");
  EXPECT_NE(own.find(StrCat("'", its.string(), "', left by a bench that was killed, is removed")), std::string::npos) << own;
  EXPECT_TRUE(IsGone(folder_ / "weir_bench_step_"));
}

TEST_F(BenchFolders, ThatIsNotEmptyIsRefusedInWordsOfTheBench) {
  fs::create_directories(folder_ / "mine/own");
  const Result result = Weir(Step("--steps 2 --out " + (folder_ / "mine").string()));
  EXPECT_EQ(result.code, 1);
  EXPECT_NE(result.output.find("is no empty folder, and bench step removes its folder"), std::string::npos) << result.output;
  EXPECT_EQ(result.output.find("--resume"), std::string::npos) << "bench has none: " << result.output;
  EXPECT_TRUE(fs::exists(folder_ / "mine/own"));
}

TEST_F(BenchFolders, NeedsRoomBeforeTheFirstStep) {
  const std::string disk = (folder_ / "disk").string(), mount = "unshare -rm sh -c 'mount -t tmpfs -o size=2M none " + disk;
  fs::create_directories(disk);
  if (std::system((mount + "' >/dev/null 2>&1").c_str()) != 0) GTEST_SKIP() << "this user may not mount a small disk";
  const int code = std::system(StrCat(mount, " && " WEIR_PROGRAM " ", Step("--steps 4 --out " + disk + "/bench"), "; ls ", disk, "' >", Log().string(), " 2>&1").c_str());
  const std::string log = Slurp(Log());
  EXPECT_EQ(WEXITSTATUS(code), 0) << "of ls: " << log;
  EXPECT_NE(log.find("free; 2 checkpoints of "), std::string::npos) << log;
  EXPECT_EQ(log.find("s a step"), std::string::npos) << log;
  EXPECT_FALSE(log.ends_with("bench\n")) << "nothing stays: " << log;
}

}  // namespace
}  // namespace weir
