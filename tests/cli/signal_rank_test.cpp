// SAV-08: a signal that reaches rank 1 alone, while an evaluation runs. Each rank is a process of its own, as srun starts it.
#include <array>
#include <functional>
#include <set>

#include "tests/cli/trained_run.h"

namespace weir {
namespace {

class SignalRank : public TrainedRun {
 protected:
  void SetUp() override {
    TrainedRun::SetUp();
    std::ofstream held(folder_ / "held.txt");
    for (int i = 0; i < 5000; ++i) held << "line " << i << " of another text\n";
  }
  // Evaluations of many times the length of a step: before the first of six, after the third and after the last. Saves by signals alone.
  std::string Flags() const {
    return "--steps 6 --threads 1 --eval-batches 300 --eval-every 3 --save-every 100 --resume auto --eval-data " + (folder_ / "held.txt").string();
  }
  // Starts both ranks; rank 1 gets the signal, 0 for none, once `ready`. The codes that they end with.
  std::array<int, 2> Run(int signal, const std::function<bool()>& ready) const {
    std::array<pid_t, 2> ranks{};
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      ranks[rank] = StartShell(StrCat("exec env WEIR_RANK=", rank, " WEIR_LOCAL_RANK=", rank, " WEIR_WORLD_SIZE=2 WEIR_LOCAL_SIZE=2 WEIR_RENDEZVOUS=",
                                      (folder_ / "rendezvous").string(), " ", Command("run", Flags()), " >", Log(rank).string(), " 2>&1"));
    }
    for (int i = 0; i < 30000 && signal != 0 && !ready(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (signal != 0) kill(ranks[1], signal);
    const std::array<int, 2> codes = {ExitOf(ranks[0]), ExitOf(ranks[1])};
    fs::remove(folder_ / "rendezvous");
    return codes;
  }
  // Stops the run by a signal to rank 1 while it evaluates after `step`: nothing is known of that evaluation, and the step is saved.
  void StopEvaluating(int64_t step, int signal) const {
    const auto evaluating = [&] {
      const bool began = step > 0 ? Losses("run").size() == static_cast<size_t>(step) : fs::exists(folder_ / "run/plan.json");
      return began && std::ssize(Evaluations("run")) == step / 3;
    };
    EXPECT_EQ(Run(signal, evaluating), (std::array{75, 75})) << "after step " << step << "\n" << Slurp(Log(0)) << Slurp(Log(1));
    EXPECT_EQ(std::ssize(Losses("run")), step);
    EXPECT_EQ(std::ssize(Evaluations("run")), step / 3) << "the one that was broken off is not recorded";
    std::set<std::string> names, expected;
    for (const auto& entry : fs::directory_iterator(folder_ / "run/checkpoints")) names.insert(entry.path().filename().string());
    if (step > 0) expected.insert(CheckpointName(step));
    if (step == 6) expected.insert(CheckpointName(3));
    EXPECT_EQ(names, expected);
    EXPECT_NE(Slurp(Log(0)).find(StrCat("stopped by signal ", signal, " after step ", step, " of 6")), std::string::npos) << Slurp(Log(0));
    EXPECT_EQ(Slurp(Log(1)).find("stopped by"), std::string::npos) << "rank 0 says it for both: " << Slurp(Log(1));
  }
  std::map<std::string, std::string> Tensors(const std::string& out) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(folder_ / out / "checkpoints" / CheckpointName(6))) {
      if (entry.path().extension() == ".safetensors") files[entry.path().filename().string()] = Slurp(entry.path());
    }
    return files;
  }
  fs::path Log(size_t rank) const { return folder_ / StrCat("rank", rank, ".log"); }
};

TEST_F(SignalRank, DuringAnyEvaluationStopsBothAtTheSameStep_SAV08) {
  ASSERT_EQ(Train("whole", Flags() + " --ranks 2").code, 0) << Slurp(folder_ / "whole.log");
  StopEvaluating(0, SIGTERM);
  EXPECT_NE(Slurp(Log(0)).find("told to stop before a step of its own: nothing is lost"), std::string::npos) << Slurp(Log(0));
  EXPECT_EQ(Slurp(Log(0)).find("checkpoint is saved"), std::string::npos) << Slurp(Log(0));
  StopEvaluating(3, SIGUSR1);
  EXPECT_NE(Slurp(Log(0)).find("the step under way is finished and a checkpoint is saved"), std::string::npos) << Slurp(Log(0));
  StopEvaluating(6, SIGTERM);
  EXPECT_EQ(Run(0, {}), (std::array{0, 0})) << Slurp(Log(0)) << Slurp(Log(1));
  ExpectSame("whole", "run");
  EXPECT_EQ(Tensors("whole"), Tensors("run"));
}

}  // namespace
}  // namespace weir
