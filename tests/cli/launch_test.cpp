// Who starts a run: environments that are wrong or half there, and a launcher that is killed.
#include <sys/file.h>

#include <fcntl.h>

#include <iterator>
#include <vector>

#include "tests/cli/trained_run.h"

namespace weir {
namespace {

class Launch : public TrainedRun {
 protected:
  void SetUp() override {
    TrainedRun::SetUp();
    fs::create_directories(temporary_ = folder_ / "tmp");
  }
  // Of a run whose temporary folder is temporary_.
  std::string Here(const std::string& command) const { return "TMPDIR=" + temporary_.string() + " " + command; }
  Outcome Start(const std::string& environment, const std::string& flags) const {
    const fs::path log = folder_ / "log";
    const auto begin = std::chrono::steady_clock::now();
    const int code = ExitOf(StartShell(Here(environment + " " + Command("out", flags) + " >" + log.string() + " 2>&1")));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << environment;
    return {code, Slurp(log)};
  }
  fs::path temporary_;
};

// LNC-02: one sentence that names the variable, before anything is begun.
TEST_F(Launch, AWrongOrPartialEnvironmentIsOneClearError) {
  const std::string torchrun = "MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 ", mpi = "OMPI_COMM_WORLD_";
  const std::string srun = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_NODELIST='gpu[07-08]' ";
  const std::pair<std::string, std::string> rows[] = {
      {"RANK=0 LOCAL_RANK=0 " + torchrun, "RANK=0 is set, but WORLD_SIZE is not"},
      {"RANK=1 " + torchrun, "RANK=1 is set, but WORLD_SIZE is not"},
      {"WORLD_SIZE=2 LOCAL_RANK=0 " + torchrun, "WORLD_SIZE=2 is set, but RANK is not"},
      {"RANK=0 WORLD_SIZE=two " + torchrun, "environment variable WORLD_SIZE='two' is not a count"},
      {"RANK=0 WORLD_SIZE= " + torchrun, "environment variable WORLD_SIZE='' is not a count"},
      {"RANK=2 WORLD_SIZE=2 LOCAL_RANK=0 " + torchrun, "torchrun says rank 2 of 2"},
      {"RANK=0 WORLD_SIZE=0 " + torchrun, "torchrun says rank 0 of 0"},
      {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2 " + torchrun, "local rank 2 of 2"},
      {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=4 " + torchrun, "local rank 0 of 4"},
      {"RANK=0 WORLD_SIZE=2 MASTER_PORT=29500", "MASTER_ADDR is not set"},
      {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1", "MASTER_PORT is 0"},
      {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=70000", "MASTER_PORT is 70000"},
      {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=http", "environment variable MASTER_PORT='http' is not a count"},
      {mpi + "RANK=1", "OMPI_COMM_WORLD_RANK=1 is set, but OMPI_COMM_WORLD_SIZE is not"},
      {mpi + "SIZE=2", "OMPI_COMM_WORLD_SIZE=2 is set, but OMPI_COMM_WORLD_RANK is not"},
      {mpi + "RANK=3 " + mpi + "SIZE=2", "mpirun says rank 3 of 2"},
      {mpi + "RANK=-1 " + mpi + "SIZE=2", "environment variable OMPI_COMM_WORLD_RANK='-1' is not a count"},
      {mpi + "RANK=0 " + mpi + "SIZE=4 " + mpi + "LOCAL_RANK=0 " + mpi + "LOCAL_SIZE=2", "started by mpirun as rank 0 of 4, but MASTER_ADDR is not set"},
      {"PMI_RANK=1", "PMI_RANK=1 is set, but PMI_SIZE is not"},
      {"PMI_SIZE=2", "PMI_SIZE=2 is set, but PMI_RANK is not"},
      {srun + "SLURM_PROCID=1", "SLURM_PROCID=1 and SLURM_STEP_ID=0 are set, but neither SLURM_STEP_NUM_TASKS nor SLURM_NTASKS is"},
      {srun + "SLURM_PROCID=2 SLURM_NTASKS=2", "srun says rank 2 of 2"},
      {srun + "SLURM_PROCID=x SLURM_NTASKS=2", "environment variable SLURM_PROCID='x' is not a count"},
      {"SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=2", "started by srun as rank 0 of 2, but MASTER_ADDR is not set"},
      {"SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NODELIST='gpu[07-08'", "node list 'gpu[07-08' has no closing bracket"},
      {"WEIR_RANK=1", "WEIR_RANK=1 is set, but WEIR_WORLD_SIZE is not"},
  };
  for (const auto& [environment, words] : rows) {
    const Outcome outcome = Start(environment, "--steps 1");
    EXPECT_EQ(outcome.code, 1) << environment;
    EXPECT_NE(outcome.text.find(words), std::string::npos) << environment << "\n" << outcome.text;
    EXPECT_EQ(std::ranges::count(outcome.text, '\n'), 1) << environment << "\n" << outcome.text;
    EXPECT_FALSE(fs::exists(folder_ / "out")) << environment;
  }
}

TEST_F(Launch, AKilledLauncherIsToldAndLeavesNothing) {
  const fs::path log = folder_ / "log";
  const pid_t launcher = StartShell(Here("exec " + Command("out", "--ranks 2 --threads 1 --steps 1000000") + " >/dev/null 2>" + log.string()));
  for (int i = 0; i < 5000 && Lines("out") < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  ASSERT_GE(Lines("out"), 2) << Slurp(log);
  EXPECT_FALSE(fs::is_empty(temporary_));
  kill(launcher, SIGKILL);
  EXPECT_EQ(ExitOf(launcher), -SIGKILL);
  const std::string words = StrCat("weir: the launcher (pid ", launcher, ") ended without a word (killed?); its ranks end with it, nothing more is saved\n");
  const auto told = [&] { return Slurp(log).find(words) != std::string::npos; };
  for (int i = 0; i < 5000 && !(told() && fs::is_empty(temporary_)); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_TRUE(told()) << Slurp(log);
  EXPECT_TRUE(fs::is_empty(temporary_));
  const Outcome again = Start("", "--ranks 2 --threads 1 --steps 40 --resume auto");
  EXPECT_EQ(again.code, 0) << again.text << "its ranks are gone, the folder is free";
}

// The whole group was killed: nobody could remove it.
TEST_F(Launch, AFolderThatALauncherLeftIsRemovedByTheNext) {
  const fs::path stale = temporary_ / "weir-ranks-stale1", live = temporary_ / "weir-ranks-live11", other = temporary_ / "weir-rank";
  for (const fs::path& folder : {stale, live, other}) fs::create_directories(folder);
  std::ofstream(stale / "rank0") << "127.0.0.1 1\n";
  const int held = open(live.c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(flock(held, LOCK_EX), 0);
  EXPECT_EQ(Start("", "--ranks 2 --threads 1 --steps 1").code, 0) << Slurp(folder_ / "log");
  close(held);
  EXPECT_FALSE(fs::exists(stale));
  EXPECT_TRUE(fs::exists(live)) << "its launcher lives";
  EXPECT_TRUE(fs::exists(other)) << "not ours";
}

// The words of whoever is left: how the rank ended, and at which step.
TEST_F(Launch, ARankThatIsKilledIsToldWithItsSignalAndStep) {
  const fs::path log = folder_ / "log";
  const pid_t launcher = StartShell(Here("exec " + Command("out", "--ranks 2 --threads 1 --steps 1000000") + " >/dev/null 2>" + log.string()));
  for (int i = 0; i < 10000 && Lines("out") < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  ASSERT_GE(Lines("out"), 2) << Slurp(log);
  std::ifstream file(StrCat("/proc/", launcher, "/task/", launcher, "/children"));
  const std::vector<pid_t> ranks{std::istream_iterator<pid_t>(file), {}};
  ASSERT_EQ(ranks.size(), 2u);
  kill(ranks[1], SIGKILL);
  EXPECT_EQ(ExitOf(launcher), 128 + SIGKILL);
  const std::string text = Slurp(log), words = StrCat("rank 1 failed: it was ended by signal 9 (Killed) (pid ", ranks[1], "), last ");
  ASSERT_NE(text.find(words), std::string::npos) << text;
  const std::string last = text.substr(text.find(words) + words.size(), 80);
  EXPECT_TRUE(last.starts_with("step ") || last.starts_with("after step ") || last.starts_with("computing") || last.starts_with("waiting")) << text;
  EXPECT_EQ(text.find("last starting"), std::string::npos) << text;
}

}  // namespace
}  // namespace weir
