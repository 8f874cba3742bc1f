// `weir train --save-every --resume auto`: the real program, stopped and gone on with. SAV rows of public reports.
#include <gtest/gtest.h>

#include "tests/cli/trained_run.h"

namespace weir {
namespace {

class Resume : public TrainedRun {};

TEST_F(Resume, AStoppedRunEndsWithTheRequeueCodeAndGoesOnToTheSameBytes) {
  ASSERT_EQ(Train("whole", "--steps 200").code, 0);
  const int status = Interrupt("parts", "--steps 200", 10, SIGTERM);
  ASSERT_TRUE(WIFEXITED(status));
  ASSERT_EQ(WEXITSTATUS(status), 75);
  ASSERT_LT(Lines("parts"), 200);
  const Outcome rest = Train("parts", "--steps 200 --resume auto");
  ASSERT_EQ(rest.code, 0) << rest.text;
  EXPECT_NE(rest.text.find("resumed after step"), std::string::npos);
  ExpectSame("whole", "parts");
}

TEST_F(Resume, AKilledRunLosesNoMoreThanTheStepsSinceItsCheckpoint) {
  ASSERT_EQ(Train("whole", "--steps 120").code, 0);
  for (const int lines : {2, 17, 40}) {
    const int64_t before = Lines("parts");
    Interrupt("parts", "--steps 120 --resume auto", static_cast<int>(before) + lines, SIGKILL);
  }
  const Outcome rest = Train("parts", "--steps 120 --resume auto");
  ASSERT_EQ(rest.code, 0) << rest.text;
  ExpectSame("whole", "parts");
}

TEST_F(Resume, TwoRanksGoOnTogether) {
  ASSERT_EQ(Train("whole", "--steps 8 --ranks 2 --threads 1").code, 0);
  ASSERT_EQ(Train("parts", "--steps 8 --ranks 2 --threads 1").code, 0);
  fs::remove_all(folder_ / "parts/checkpoints/step-000000008");
  const Outcome rest = Train("parts", "--steps 8 --ranks 2 --threads 1 --resume auto");
  ASSERT_EQ(rest.code, 0) << rest.text;
  EXPECT_NE(rest.text.find("resumed after step 6"), std::string::npos) << rest.text;
  ExpectSame("whole", "parts");
}

TEST_F(Resume, OtherDataOrFlagsAreRefusedAndAFinishedRunStaysFinished) {
  ASSERT_EQ(Train("run", "--steps 4").code, 0);
  const std::string weights = Slurp(folder_ / "run/weights.safetensors");
  EXPECT_EQ(Train("run", "--steps 4").code, 1);  // not empty
  const Outcome other = Train("run", "--steps 6 --seed 5 --resume auto");
  EXPECT_EQ(other.code, 1);
  EXPECT_NE(other.text.find("--seed: 0 then, 5 now"), std::string::npos) << other.text;
  std::string text = Slurp(folder_ / "text.txt");
  std::swap(text[10], text[11]);
  std::ofstream(folder_ / "text.txt") << text;
  const Outcome swapped = Train("run", "--steps 6 --resume auto");
  EXPECT_EQ(swapped.code, 1);
  EXPECT_NE(swapped.text.find("hash of --data"), std::string::npos) << swapped.text;
  std::swap(text[10], text[11]);
  std::ofstream(folder_ / "text.txt") << text;
  const Outcome shorter = Train("run", "--steps 2 --resume auto");
  EXPECT_NE(shorter.code, 0);
  EXPECT_NE(shorter.text.find("has finished step 4 already"), std::string::npos) << shorter.text;
  const Outcome again = Train("run", "--steps 4 --resume auto");
  ASSERT_EQ(again.code, 0);
  EXPECT_NE(again.text.find("all 4 steps are done already"), std::string::npos) << again.text;
  const std::string config = Slurp(folder_ / "run/config.ini");
  ASSERT_EQ(Train("run", "--steps 4 --resume auto --weight-decay 0.25").code, 0);
  EXPECT_EQ(Slurp(folder_ / "run/config.ini"), config) << "no step was trained with another";
  EXPECT_EQ(Slurp(folder_ / "run/weights.safetensors"), weights);
  EXPECT_EQ(Lines("run"), 4);
}

TEST_F(Resume, EvaluationsAreTheSameAndChangeNothing) {
  std::ofstream(folder_ / "held.txt") << "line 12 of another text, held out";
  const std::string eval = " --eval-every 4 --eval-data " + (folder_ / "held.txt").string();
  ASSERT_EQ(Train("plain", "--steps 10").code, 0);
  ASSERT_EQ(Train("whole", "--steps 10" + eval).code, 0);
  EXPECT_EQ(Slurp(folder_ / "plain/weights.safetensors"), Slurp(folder_ / "whole/weights.safetensors"));
  EXPECT_EQ(Losses("plain"), Losses("whole"));
  const auto evaluations = Evaluations("whole");
  ASSERT_EQ(evaluations.size(), 4u) << "steps 0, 4, 8 and 10";
  EXPECT_TRUE(evaluations[1].starts_with("4 ")) << evaluations[1];
  EXPECT_TRUE(evaluations[3].ends_with(" 32")) << evaluations[3] << ": 33 bytes";
  ASSERT_EQ(Train("parts", "--steps 10" + eval).code, 0);
  fs::remove_all(folder_ / "parts/checkpoints/step-000000010");
  fs::remove_all(folder_ / "parts/checkpoints/step-000000009");
  ASSERT_EQ(Train("parts", "--steps 10 --resume auto" + eval).code, 0);
  ExpectSame("whole", "parts");
}

// Weights that are gathered (or cast) once a step are those of the last update when they are evaluated.
TEST_F(Resume, EvaluationsAreOfTheWeightsOfTheirStepHoweverTheyAreHeld) {
  const std::string flags = "--steps 4 --ranks 2 --threads 1 --eval-every 2 --eval-data " + (folder_ / "text.txt").string();
  ASSERT_EQ(Train("whole", flags).code, 0);
  const Outcome shards = Train("shards", flags + " --shard-optimizer");
  ASSERT_EQ(shards.code, 0) << shards.text;
  ASSERT_EQ(Evaluations("whole").size(), 3u);
  ExpectSame("whole", "shards");
  const Outcome layers = Train("layers", flags + " --shard-parameters all");
  ASSERT_EQ(layers.code, 0) << layers.text;
  ExpectSame("whole", "layers");
}

TEST_F(Resume, EvaluationsChangeNoBitHoweverTheWorkIsSpread) {
  const std::string eval = " --eval-every 1 --eval-data " + (folder_ / "text.txt").string();
  for (const char* spread : {"--vocab-parallel 2 --strip 64 --head-gradient shard", "--expert-parallel 2 --chunk-tokens 16 --shard-optimizer", "--shard-parameters all",
                             "--context-parallel 2 --recompute layer --host-budget 1GiB --bucket 1000"}) {
    const std::string flags = StrCat("--steps 3 --ranks 2 --threads 1 ", spread);
    for (const char* out : {"plain", "evaluated"}) fs::remove_all(folder_ / out);
    ASSERT_EQ(Train("plain", flags).code, 0) << spread;
    ASSERT_EQ(Train("evaluated", flags + eval).code, 0) << spread;
    EXPECT_EQ(Losses("plain"), Losses("evaluated")) << spread;
    EXPECT_EQ(Evaluations("evaluated").size(), 4u) << spread;
    EXPECT_EQ(Slurp(folder_ / "plain/weights.safetensors"), Slurp(folder_ / "evaluated/weights.safetensors")) << spread;
  }
}

TEST_F(Resume, AMixtureGoesOnWithItsWeightsOnly) {
  std::ofstream(folder_ / "other.txt") << std::string(3000, 'x');
  const auto mixture = [&](const char* first, const char* second) {
    return StrCat(" --data ", (folder_ / "text.txt").string(), first, " --data ", (folder_ / "other.txt").string(), second);
  };
  const auto train = [&](const std::string& out, const std::string& more) {
    const std::string single = " --data " + (folder_ / "text.txt").string();
    std::string command = Command(out, more);
    command.erase(command.find(single), single.size());
    const int status = std::system((command + " >" + (folder_ / "log").string() + " 2>&1").c_str());
    return Outcome{WEXITSTATUS(status), Slurp(folder_ / "log")};
  };
  const std::string weights = mixture(":0.7", ":0.3");
  ASSERT_EQ(train("whole", "--steps 9" + weights).code, 0) << Slurp(folder_ / "log");
  ASSERT_EQ(train("parts", "--steps 9" + weights).code, 0);
  fs::remove_all(folder_ / "parts/checkpoints/step-000000009");
  const Outcome other = train("parts", "--steps 9 --resume auto" + mixture(":0.6", ":0.4"));
  EXPECT_EQ(other.code, 1);
  EXPECT_NE(other.text.find("weights of --data: 0.7, 0.3 then, 0.6, 0.4 now"), std::string::npos) << other.text;
  ASSERT_EQ(train("parts", "--steps 9 --resume auto" + weights).code, 0) << Slurp(folder_ / "log");
  ExpectSame("whole", "parts");
  EXPECT_EQ(train("wrong", "--steps 9" + mixture(":0.7", "")).code, 2) << "one weight only";
}

TEST_F(Resume, TellsWhatACheckpointCostAndPlansItsMemory) {
  const Outcome outcome = Train("run", "--steps 7");
  ASSERT_EQ(outcome.code, 0) << outcome.text;
  EXPECT_NE(outcome.text.find("step 3/7  checkpoint: steps waited 0."), std::string::npos) << outcome.text;
  EXPECT_NE(outcome.text.find("% of the time since the last), written in "), std::string::npos) << outcome.text;
  std::vector<int64_t> steps;
  std::ifstream file(folder_ / "run/metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    if (!json.contains("checkpoint_bytes")) continue;
    steps.push_back(json["step"]);
    EXPECT_GT(json["checkpoint_bytes"].get<int64_t>(), 1000000);
    EXPECT_GE(json["checkpoint_share"].get<double>(), 0);
    EXPECT_LT(json["checkpoint_share"].get<double>(), 1);
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{3, 6, 7}));
  // 12 bytes of each parameter.
  const auto plan = nlohmann::json::parse(Slurp(folder_ / "run/plan.json"));
  int64_t parameters = 0;
  for (const auto& [name, data] : ReadSafetensors(folder_ / "run/weights.safetensors").tensors) parameters += data->elements();
  EXPECT_EQ(plan["host_arena_bytes"].get<int64_t>(), (12 * parameters + 255) / 256 * 256);
  EXPECT_EQ(plan["host_ledger"]["checkpoints"], plan["host_arena_bytes"]);
  EXPECT_EQ(Slurp(folder_ / "run/checkpoints" / CheckpointName(7) / "plan.json"), Slurp(folder_ / "run/plan.json"));
  EXPECT_EQ(Slurp(folder_ / "run/checkpoints" / CheckpointName(7) / "config.ini"), Slurp(folder_ / "run/config.ini"));
  const std::string planned = WEIR_PROGRAM " plan " WEIR_SOURCE_DIR "/models/olmoe/dynamo18_batched_mm_sdpa.onnx --sequence 32 --micro-batch 2 "
                              "--save-every 3 --json >" + (folder_ / "plan.json").string();
  ASSERT_EQ(std::system(planned.c_str()), 0);
  EXPECT_EQ(nlohmann::json::parse(Slurp(folder_ / "plan.json"))["host_arena_bytes"], plan["host_arena_bytes"]);
  const Outcome dry = Train("dry", "--steps 7 --dry-run");
  EXPECT_NE(dry.text.find("checkpoint staging"), std::string::npos) << dry.text;
}

// What checkpoints take is a term of the plan: `weir plan` and --dry-run count what train takes, rank 0 of several too.
TEST_F(Resume, PlanCountsCheckpointsToTheByte) {
  for (const std::string ranks : {"", "--ranks 2 --threads 1 ", "--ranks 2 --threads 1 --shard-optimizer "}) {
    for (const std::string save : {"--save-every 1 ", "--save-every 1 --save-async off "}) {
      const std::string out = StrCat("run", ranks.size(), save.size());
      const Outcome run = Train(out, "--steps 1 " + ranks + save);
      ASSERT_EQ(run.code, 0) << run.text;
      const auto trained = nlohmann::json::parse(Slurp(folder_ / out / "plan.json"));
      const std::string command = WEIR_PROGRAM " plan " WEIR_SOURCE_DIR "/models/olmoe/dynamo18_batched_mm_sdpa.onnx --sequence 32 --micro-batch 2 --json " + ranks + save;
      ASSERT_EQ(std::system((command + ">" + (folder_ / "plan.json").string()).c_str()), 0);
      const auto planned = nlohmann::json::parse(Slurp(folder_ / "plan.json"));
      EXPECT_GT(trained["host_ledger"]["checkpoints"].get<int64_t>(), 0) << out;
      EXPECT_NE(run.text.find("tokens per step, arena " + FormatBytes(trained["arena_bytes"].get<int64_t>())), std::string::npos) << run.text;
      for (const char* key : {"arena_bytes", "host_arena_bytes", "ledger", "host_ledger"}) EXPECT_EQ(planned[key], trained[key]) << key << " of " << command;
      const Outcome dry = Train("dry", "--steps 1 --dry-run " + ranks + save);
      EXPECT_NE(dry.text.find("host arena " + FormatBytes(trained["host_arena_bytes"].get<int64_t>())), std::string::npos) << dry.text;
    }
  }
  // A host budget counts it, and the command line that is chosen saves as was asked.
  const std::string plan = WEIR_PROGRAM " plan " WEIR_SOURCE_DIR "/models/olmoe/dynamo18_batched_mm_sdpa.onnx --sequence 32 --save-every 7 --auto --device-memory 1GB --host-memory ";
  const int refused = std::system((plan + "1000 >/dev/null 2>&1").c_str());
  EXPECT_TRUE(WIFEXITED(refused) && WEXITSTATUS(refused) == 3);
  ASSERT_EQ(std::system((plan + "1GB >" + (folder_ / "auto.txt").string() + " 2>&1").c_str()), 0);
  EXPECT_NE(Slurp(folder_ / "auto.txt").find("--save-every 7"), std::string::npos) << Slurp(folder_ / "auto.txt");
}

TEST_F(Resume, SaysWhichFlagsChanged) {
  ASSERT_EQ(Train("run", "--steps 3").code, 0);
  const Outcome outcome = Train("run", "--steps 4 --weight-decay 0.25 --resume auto");
  ASSERT_EQ(outcome.code, 0) << outcome.text;
  EXPECT_NE(outcome.text.find("changed --steps: 3 then, 4 now\n"), std::string::npos) << outcome.text;
  EXPECT_NE(outcome.text.find("changed --weight-decay: 0.1 then, 0.25 now\n"), std::string::npos) << outcome.text;
  EXPECT_EQ(outcome.text.find("--threads"), std::string::npos) << outcome.text;
}

// A first start that ended early, for want of room say, leaves a lock and an empty folder.
TEST_F(Resume, AFolderWithoutAStepIsNew) {
  fs::create_directories(folder_ / "run" / "checkpoints");
  std::ofstream(folder_ / "run" / ".lock");
  EXPECT_EQ(Train("run", "--steps 1 --resume auto").code, 0);
  fs::create_directories(folder_ / "other");
  std::ofstream(folder_ / "other" / "notes.txt");
  const Outcome other = Train("other", "--steps 1 --resume auto");
  EXPECT_EQ(other.code, 1);
  EXPECT_NE(other.text.find("holds 'notes.txt' and neither config.ini nor a checkpoint (checkpoints/step-*) to go on from"), std::string::npos) << other.text;
}

// The disk was full before the first step was made: the same command begins anew. What others put there stays refused.
TEST_F(Resume, AStartThatFailedDoesNotRefuseTheNextOne) {
  const std::string flags = "--steps 2 --save-every 0 --tensorboard";
  for (const char* blocks : {"0", "1", "4"}) {  // as large as a file may be: the events, the config or the plan finds no room
    fs::remove_all(folder_ / "run");
    const int status = std::system(("( ulimit -f " + std::string(blocks) + "; " + Command("run", flags) + " ) 2>&1 | cat >" + (folder_ / "log").string()).c_str());
    ASSERT_EQ(status, 0);
    ASSERT_FALSE(fs::exists(folder_ / "run/weights.safetensors")) << Slurp(folder_ / "log");
    ASSERT_TRUE(fs::exists(folder_ / "run/metrics.jsonl"));
    const Outcome again = Train("run", flags);
    ASSERT_EQ(again.code, 0) << again.text;
    EXPECT_EQ(Lines("run"), 2);
  }
  EXPECT_NE(Train("run", flags).text.find("is not empty; give another --out"), std::string::npos) << "its steps are kept";
  fs::create_directories(folder_ / "mine");
  std::ofstream(folder_ / "mine/config.ini") << "steps = 3\n";
  EXPECT_EQ(Train("mine", flags).code, 1) << "no run has made it";
  std::ofstream(folder_ / "mine/metrics.jsonl");
  std::ofstream(folder_ / "mine/notes.txt");
  EXPECT_EQ(Train("mine", flags).code, 1);
  EXPECT_EQ(Slurp(folder_ / "mine/config.ini"), "steps = 3\n");
}

TEST_F(Resume, SaysWhatIsThereInsteadOfAWholeCheckpoint) {
  ASSERT_EQ(Train("run", "--steps 3").code, 0);
  const fs::path checkpoints = folder_ / "run/checkpoints";
  fs::rename(checkpoints / CheckpointName(3), checkpoints / UnfinishedName(3));
  fs::create_directories(checkpoints / ("set-aside-" + CheckpointName(9)));
  fs::remove(folder_ / "run/weights.safetensors");
  const Outcome anew = Train("run", "--steps 3 --resume auto");
  ASSERT_EQ(anew.code, 0) << anew.text;
  for (const std::string& text : {UnfinishedName(3) + "' was never finished\n", "set-aside-" + CheckpointName(9) + "' was set aside; rename it to " + CheckpointName(9),
                                  std::string("': the run begins with its first step\n")}) {
    EXPECT_NE(anew.text.find(text), std::string::npos) << text << " in " << anew.text;
  }
  EXPECT_EQ(Lines("run"), 3);
  EXPECT_EQ(Train("new", "--steps 1 --resume auto").text.find("no whole checkpoint"), std::string::npos) << "nothing was there";
}

// A run that finished, one of other flags, and one that could never go on: what they trained stays as it is.
TEST_F(Resume, OverwritesNoTrainedWeights) {
  ASSERT_EQ(Train("run", "--steps 3 --save-every 0").code, 0);
  const std::string weights = Slurp(folder_ / "run/weights.safetensors"), metrics = Slurp(folder_ / "run/metrics.jsonl");
  for (const char* flags : {"--steps 3 --save-every 0", "--steps 5 --save-every 0", "--steps 5 --seed 7"}) {
    const Outcome refused = Train("run", std::string(flags) + " --resume auto");
    EXPECT_EQ(refused.code, 1) << flags;
    EXPECT_NE(refused.text.find("holds weights.safetensors after step 3 and no checkpoint to go on from"), std::string::npos) << refused.text;
    EXPECT_EQ(refused.text.find("begins with its first step"), std::string::npos) << refused.text;
  }
  EXPECT_EQ(Slurp(folder_ / "run/weights.safetensors"), weights);
  EXPECT_EQ(Slurp(folder_ / "run/metrics.jsonl"), metrics);
}

// The same command again, as restart loops give it, after an end before the first checkpoint.
TEST_F(Resume, KeepsTheWeightsOfAnEarlyEnd) {
  const std::string flags = "--steps 100000 --save-every 90000 --schedule constant --resume auto";
  Interrupt("run", flags, 3, SIGINT);
  fs::remove_all(folder_ / "run/checkpoints");  // that of the signal
  fs::remove(folder_ / "run/metrics.jsonl");    // whose lines Interrupt counts
  const std::string weights = Slurp(folder_ / "run/weights.safetensors");
  ASSERT_FALSE(weights.empty());
  Interrupt("run", flags, 1, SIGKILL);
  int kept = 0;
  for (const auto& entry : fs::directory_iterator(folder_ / "run")) {
    if (!entry.path().filename().string().starts_with("weights-after-")) continue;
    ++kept;
    EXPECT_TRUE(Slurp(entry.path()) == weights) << entry.path();
  }
  EXPECT_EQ(kept, 1);
}

// Copied without the rest of its run: the checkpoint knows its flags.
TEST_F(Resume, AWholeCheckpointIsEnoughToGoOn) {
  ASSERT_EQ(Train("whole", "--steps 6 --schedule constant").code, 0);
  ASSERT_EQ(Train("run", "--steps 3 --schedule constant").code, 0);
  fs::create_directories(folder_ / "copy");
  fs::copy(folder_ / "run/checkpoints", folder_ / "copy/checkpoints", fs::copy_options::recursive);
  fs::copy(folder_ / "run/metrics.jsonl", folder_ / "copy/metrics.jsonl");
  const Outcome rest = Train("copy", "--steps 6 --schedule constant --resume auto");
  ASSERT_EQ(rest.code, 0) << rest.text;
  EXPECT_NE(rest.text.find("changed --steps: 3 then, 6 now\n"), std::string::npos) << rest.text;
  EXPECT_EQ(rest.text.find("(left out)"), std::string::npos) << rest.text;
  ExpectSame("whole", "copy");
}

TEST_F(Resume, TwoRunsDoNotWriteInOneFolder) {
  const pid_t first = fork();
  if (first == 0) {
    execl("/bin/sh", "sh", "-c", ("exec " + Command("run", "--steps 100000") + " 2>/dev/null >/dev/null").c_str(), nullptr);
    _exit(127);
  }
  for (int i = 0; i < 3000 && Lines("run") < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const Outcome second = Train("run", "--steps 100000 --resume auto");
  kill(first, SIGKILL);
  waitpid(first, nullptr, 0);
  EXPECT_EQ(second.code, 1);
  EXPECT_NE(second.text.find("another weir train writes in"), std::string::npos) << second.text;
}

TEST_F(Resume, WrongValuesAreWrongUse) {
  for (const char* flags : {"--resume maybe", "--keep 0", "--save-every -1", "--keep-every -2", "--leaves 0", "--unit-rows -1",
                            "--save-every 0 --keep-every 3", "--expert-parallel 2", "--chunk-tokens -5", "--max-chunks 3", "--lambda 0",
                            "--alpha 0.5", "--min-rows 0", "--max-foreign -1", "--trace-step 9999", "--eval-every 3",
                            "--eval-every -1 --eval-data x", "--save-async maybe", "--save-every 0 --save-async off", "--save-every 0 --keep 2", "--init-std 0.1", "--decay-steps 2", "--eval-batches -1 --eval-data x", "--data other.txt:0.5", "--data a:0"}) {
    EXPECT_EQ(Train("wrong", flags).code, 2) << flags;
  }
  EXPECT_FALSE(fs::exists(folder_ / "wrong"));
}

}  // namespace
}  // namespace weir
