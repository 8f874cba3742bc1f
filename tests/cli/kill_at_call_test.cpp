// SAV-01: a run that is killed at any of its calls that change a file goes on from a whole checkpoint and ends in the same bytes.
// The calls are those of the real program (tests/preload/kill_at_call.cpp), the state two small tensors.
#include <map>
#include <set>

#include "tests/cli/trained_run.h"

namespace weir {
namespace {

class KillAtCall : public TrainedRun {
 protected:
  static std::string Flags(const std::string& more) {
    return "--save-every 1 --keep 1 --schedule constant --freeze 'model.layers*' --freeze 'val_*' --resume auto " + more;
  }
  // A run of three steps that was left alone, and one that stands after its second.
  void SetUp() override {
    TrainedRun::SetUp();
    if (std::string(WEIR_KILL_AT_CALL).empty()) GTEST_SKIP() << "a sanitizer's runtime must be loaded first";
  }
  void MakeRuns(const std::string& more) const {
    ASSERT_EQ(Train("run", Flags("--steps 3 " + more)).code, 0) << Slurp(folder_ / "run.log");
    fs::rename(Run(), folder_ / "whole");
    ASSERT_EQ(Train("run", Flags("--steps 2 " + more)).code, 0) << Slurp(folder_ / "run.log");
    fs::rename(Run(), folder_ / "base");
  }
  // Goes on from there, until the call of that number; 0 = to the end. Returns the exit code or, negative, the signal.
  int KillAt(int64_t call, const std::string& more, const std::string& rank = "") const {
    fs::remove_all(Run());
    fs::copy(folder_ / "base", Run(), fs::copy_options::recursive);
    fs::remove(Calls());
    const std::string variables = StrCat("WEIR_KILL_AT=", call, " WEIR_KILL_BELOW=", Run().string(), "/ WEIR_KILL_LOG=", Calls().string(), " WEIR_KILL_RANK=", rank,
                                         " LD_PRELOAD=" WEIR_KILL_AT_CALL " ");
    return ExitOf(StartShell(StrCat("exec env ", variables, Command("run", Flags("--steps 3 " + more)), " >", Log().string(), " 2>&1")));
  }
  std::vector<std::string> CallsMade() const {
    std::vector<std::string> calls;
    std::ifstream file(Calls());
    for (std::string line; std::getline(file, line);) calls.push_back(line);
    return calls;
  }
  static std::map<std::string, std::string> Files(const fs::path& folder) {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file()) files[entry.path().lexically_relative(folder).string()] = Slurp(entry.path());
    }
    return files;
  }
  static fs::path Checkpoint(const fs::path& run, int64_t step) { return run / "checkpoints" / CheckpointName(step); }

  // Whatever has the name of a checkpoint is whole, and there is one.
  void ExpectAWholeCheckpoint(const std::string& where) const {
    const bool before = fs::exists(Checkpoint(Run(), 2)), after = fs::exists(Checkpoint(Run(), 3));
    EXPECT_TRUE(before || after) << where;
    EXPECT_TRUE(!before || Files(Checkpoint(Run(), 2)) == Files(Checkpoint(folder_ / "base", 2))) << where;
    EXPECT_TRUE(!after || Files(Checkpoint(Run(), 3)) == Files(Checkpoint(folder_ / "counted", 3))) << where;
  }
  void ExpectGoesOn(const std::string& where, const std::string& more) const {
    const Outcome outcome = Train("run", Flags("--steps 3 " + more));
    ASSERT_EQ(outcome.code, 0) << where << "\n" << outcome.text;
    EXPECT_NE(outcome.text.find("resumed after step "), std::string::npos) << where << "\n" << outcome.text;
    EXPECT_EQ(outcome.text.find("passed over"), std::string::npos) << where << "\n" << outcome.text;
    EXPECT_EQ(Losses("run"), Losses("whole")) << where;
    EXPECT_EQ(Slurp(Run() / "weights.safetensors"), Slurp(folder_ / "whole/weights.safetensors")) << where;
    EXPECT_EQ(Names(Run() / "checkpoints"), std::set<std::string>{CheckpointName(3)}) << where;
    EXPECT_EQ(Names(Run()), Names(folder_ / "whole")) << where << ": nothing half written stays";
    EXPECT_EQ(States(Run()), States(folder_ / "whole")) << where;
  }
  static std::set<std::string> Names(const fs::path& folder) {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
    return names;
  }
  // The bytes of all tensors of the last checkpoint.
  static std::map<std::string, std::string> States(const fs::path& run) {
    auto files = Files(Checkpoint(run, 3));
    std::erase_if(files, [](const auto& file) { return !file.first.ends_with(".safetensors"); });
    return files;
  }
  fs::path Run() const { return folder_ / "run"; }
  fs::path Calls() const { return folder_ / "calls"; }
  fs::path Log() const { return folder_ / "killed.log"; }
};

// Every call of a start, a step, a save, a rotation and an end.
TEST_F(KillAtCall, EveryCallOfASave_SAV01) {
  const std::string alone = "--save-async off";
  MakeRuns(alone);
  ASSERT_EQ(KillAt(0, alone), 0) << Slurp(Log());
  const std::vector<std::string> calls = CallsMade();
  fs::rename(Run(), folder_ / "counted");
  EXPECT_EQ(States(folder_ / "counted"), States(folder_ / "whole"));
  for (const char* call : {"mkdir checkpoints/.writing-step-000000003", "rename checkpoints/step-000000003", "fsync checkpoints", "rename checkpoints/.writing-step-000000002",
                           "unlink checkpoints/.writing-step-000000002/checkpoint.json", "rename weights.safetensors", "write metrics.jsonl"}) {
    EXPECT_NE(std::ranges::find(calls, call), calls.end()) << call << " is no longer counted";
  }
  ASSERT_GT(calls.size(), 50u);
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string where = StrCat("killed at call ", i + 1, ", ", calls[i]);
    ASSERT_EQ(KillAt(static_cast<int64_t>(i) + 1, alone), -SIGKILL) << where << "\n" << Slurp(Log());
    ExpectAWholeCheckpoint(where);
    ExpectGoesOn(where, alone);
    if (HasFailure()) break;
  }
}

// While the writer's thread writes, steps go on: a sample, as the calls of both come in any order.
TEST_F(KillAtCall, CallsOfASaveBesideSteps_SAV01) {
  MakeRuns("");
  ASSERT_EQ(KillAt(0, ""), 0) << Slurp(Log());
  const auto calls = std::ssize(CallsMade());
  fs::rename(Run(), folder_ / "counted");
  for (int64_t call = 3; call < calls; call += 7) {
    const std::string where = StrCat("killed at call ", call);
    ASSERT_EQ(KillAt(call, ""), -SIGKILL) << where << "\n" << Slurp(Log());
    ExpectAWholeCheckpoint(where);
    ExpectGoesOn(where, "");
    if (HasFailure()) break;
  }
}

// Of two ranks that write their parts, rank 1: the other ends by itself, with words and a code that is no success.
TEST_F(KillAtCall, CallsOfRank1_SAV01) {
  const std::string two = "--ranks 2 --threads 1 --save-async off";
  MakeRuns(two);
  ASSERT_EQ(KillAt(0, two, "1"), 0) << Slurp(Log());
  const std::vector<std::string> calls = CallsMade();
  fs::rename(Run(), folder_ / "counted");
  ASSERT_GT(calls.size(), 10u);
  for (size_t i = 1; i < calls.size(); i += 1 + calls.size() / 6) {
    const std::string where = StrCat("rank 1 killed at call ", i + 1, ", ", calls[i]);
    EXPECT_GT(KillAt(static_cast<int64_t>(i) + 1, two, "1"), 0) << where;
    EXPECT_NE(Slurp(Log()).find("was ended by signal 9"), std::string::npos) << where << "\n" << Slurp(Log());
    ExpectAWholeCheckpoint(where);
    ExpectGoesOn(where, two);
    if (HasFailure()) break;
  }
}

}  // namespace
}  // namespace weir
