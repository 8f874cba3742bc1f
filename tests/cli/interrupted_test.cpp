// `weir train` met by signals, lost readers and full disks. SAV rows of public reports.
#include <gtest/gtest.h>

#include <iterator>

#include "tests/cli/trained_run.h"

namespace weir {
namespace {

class Interrupted : public TrainedRun {};

// Held-out data of many times what is trained on between two evaluations: the signal comes while evaluating.
TEST_F(Interrupted, ASignalDuringAnEvaluationSavesAndStops_SAV08) {
  {
    std::ofstream held(folder_ / "held.txt");
    for (int i = 0; i < 100000; ++i) held << "line " << i << " of another text\n";
  }
  for (const char* ranks : {"", " --ranks 2 --threads 1"}) {
    const std::string out = StrCat("run", std::string(ranks).size());
    const std::string flags = "--steps 40 --eval-batches 1000000 --eval-every 1 --eval-data " + (folder_ / "held.txt").string() + ranks;
    const pid_t child = fork();
    if (child == 0) {
      execl("/bin/sh", "sh", "-c", ("exec " + Command(out, flags) + " 2>/dev/null >/dev/null").c_str(), nullptr);
      _exit(127);
    }
    for (int i = 0; i < 3000 && !fs::exists(folder_ / out / "plan.json"); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const auto start = std::chrono::steady_clock::now();
    kill(child, SIGTERM);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 75) << ranks;
    EXPECT_TRUE(Losses(out).empty() && Evaluations(out).empty()) << "the first evaluation takes longer";
  }
}

// Every step is saved, so that the signal comes while one is: it is whole, and the last step is saved too.
TEST_F(Interrupted, ASignalDuringASaveSavesTheLastStep_SAV08) {
  ASSERT_EQ(Train("whole", "--steps 60").code, 0);
  int lines = 4;
  for (const char* flags : {"", " --save-async off", " --ranks 2 --threads 1"}) {
    fs::remove_all(folder_ / "parts");
    for (const int signal : {SIGTERM, SIGUSR1}) {
      const int status = Interrupt("parts", StrCat("--steps 60 --save-every 1 --resume auto", flags), lines, signal);
      ASSERT_TRUE(WIFEXITED(status)) << flags;
      if (Lines("parts") == 60) continue;
      EXPECT_EQ(WEXITSTATUS(status), 75) << flags;
      EXPECT_TRUE(fs::exists(folder_ / "parts/checkpoints" / CheckpointName(Lines("parts")) / "checkpoint.json")) << flags;
      lines += 9;
    }
    ASSERT_EQ(Train("parts", StrCat("--steps 60 --save-every 1 --resume auto", flags)).code, 0);
    if (std::string(flags).find("ranks") == std::string::npos) ExpectSame("whole", "parts");
  }
}

// SAV-07: the room.
TEST_F(Interrupted, RoomIsCheckedBeforeTheFirstStep_SAV07) {
  const Outcome outcome = Train("run", "--steps 7 --keep 1000000000");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.text.find("are to be written; lower --keep or give another --out"), std::string::npos) << outcome.text;
  EXPECT_EQ(Lines("run"), 0);
  EXPECT_EQ(Train("run", "--steps 7 --keep 1").code, 0);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "run/checkpoints"), {}), 1);
}

TEST_F(Interrupted, RoomForTheWeightsIsCheckedBeforeTheFirstStep_SAV07) {
  const auto small = TrainOnSmallDisk("300k", "--steps 5 --save-every 0 --log-every 1");
  if (!small) GTEST_SKIP() << "no file systems may be mounted here";
  EXPECT_EQ(small->code, 1);
  EXPECT_NE(small->text.find("of weights and metrics are to be written; give another --out"), std::string::npos) << small->text;
  EXPECT_EQ(small->text.find("step 1/5"), std::string::npos) << small->text;
  EXPECT_EQ(TrainOnSmallDisk("2m", "--steps 5 --save-every 0")->code, 0) << Slurp(folder_ / "disk.log");
}

TEST_F(Interrupted, AFullDiskIsToldByWhoMetItNotByItsPeers) {
  for (const char* flags : {"--save-async on", "--save-async off"}) {
    const auto full = TrainOnSmallDisk("4m", StrCat("--ranks 2 --threads 1 --steps 60 --save-every 4 --keep 1 --keep-every 4 ", flags));
    if (!full) GTEST_SKIP() << "no file systems may be mounted here";
    EXPECT_EQ(full->code, 1) << full->text;
    EXPECT_NE(full->text.find("No space left on device"), std::string::npos) << full->text;
    EXPECT_EQ(full->text.find("does not find"), std::string::npos) << full->text;
    EXPECT_EQ(full->text.find("No such file"), std::string::npos) << full->text;
  }
}

TEST_F(Interrupted, AFullDiskLeavesNoPartOfAModel) {
  const fs::path disk = folder_ / "disk", log = folder_ / "log";
  fs::create_directories(disk);
  const std::string mount = "unshare -rm sh -c 'mount -t tmpfs -o size=300k none " + disk.string();
  if (std::system((mount + "' >/dev/null 2>&1").c_str()) != 0) GTEST_SKIP() << "no file systems may be mounted here";
  const std::string rewrite = WEIR_PROGRAM " rewrite " WEIR_SOURCE_DIR "/models/olmoe/dynamo18_batched_mm_sdpa.onnx -o " + (disk / "x.onnx").string();
  EXPECT_EQ(ExitOf(StartShell(mount + " && " + rewrite + "; echo code $?; ls -A " + disk.string() + "' >" + log.string() + " 2>&1")), 0);
  const std::string text = Slurp(log);
  EXPECT_NE(text.find("No space left on device"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("code 1\n")) << "nothing is left there: " << text;
}

TEST_F(Interrupted, AHangupIsAnsweredAtOnceAndStopsTheRun) {
  const fs::path log = folder_ / "log";
  const auto hang_up = [&](const std::string& out, const std::string& before, const std::string& flags) {
    const pid_t run = StartShell(before + "exec " + Command(out, flags) + " >/dev/null 2>" + log.string());
    for (int i = 0; i < 3000 && Lines(out) < 3; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    kill(run, SIGHUP);
    return ExitOf(run);
  };
  EXPECT_EQ(hang_up("run", "", "--steps 100000"), 75);
  const std::string text = Slurp(log);
  const size_t answer = text.find("weir train: told to stop; the step under way is finished and a checkpoint is saved (a second signal kills at once)\n");
  ASSERT_NE(answer, std::string::npos) << text;
  EXPECT_GT(text.find("stopped by signal 1 after step"), answer) << text;
  EXPECT_EQ(text.find("told to stop", answer + 20), std::string::npos) << text;
  EXPECT_TRUE(fs::exists(folder_ / "run/checkpoints" / CheckpointName(Lines("run")) / "checkpoint.json"));
  EXPECT_EQ(hang_up("ranks", "", "--steps 100000 --ranks 2 --threads 1"), 75);
  EXPECT_EQ(hang_up("nohup", "trap '' HUP; ", "--steps 60"), 0) << "nohup's run goes on";
}

// The ranks have just been started and read nothing yet: the signal waits for them.
TEST_F(Interrupted, ASignalWhileRanksStartIsNotLost) {
  const fs::path log = folder_ / "log";
  for (int i = 0; i < 5; ++i) {
    const std::string out = StrCat("run", i);
    const pid_t run = StartShell("exec " + Command(out, "--steps 1000000 --ranks 2 --threads 1") + " >/dev/null 2>" + log.string());
    const std::string children = StrCat("/proc/", run, "/task/", run, "/children");
    const auto ranks = [&] {
      std::ifstream file(children);
      return std::distance(std::istream_iterator<pid_t>(file), {});
    };
    while (ranks() < 2) std::this_thread::sleep_for(std::chrono::microseconds(200));
    std::this_thread::sleep_for(std::chrono::milliseconds(10 * i));
    kill(run, SIGTERM);
    EXPECT_EQ(ExitOf(run), 75) << Slurp(log);
    EXPECT_NE(Slurp(log).find("stopped by signal 15 "), std::string::npos) << Slurp(log);
    EXPECT_EQ(Slurp(log).find("[1]"), std::string::npos) << Slurp(log);
  }
}

TEST_F(Interrupted, ARunOutlivesTheReaderOfItsOutput) {
  for (const char* ranks : {"", " --ranks 2 --threads 1"}) {
    const std::string out = StrCat("run", std::string(ranks).size()), code = (folder_ / "code").string();
    const pid_t pipe = StartShell("( " + Command(out, StrCat("--steps 30 --log-every 1", ranks)) + " 2>&1; echo $? >" + code + " ) | head -n 1 >/dev/null");
    EXPECT_EQ(ExitOf(pipe), 0);
    EXPECT_EQ(Slurp(code), "0\n") << ranks;
    EXPECT_TRUE(fs::exists(folder_ / out / "weights.safetensors")) << ranks;
  }
}

// With checkpoints the folder would come into being again, with nothing but them.
TEST_F(Interrupted, ARunWhoseFolderIsRemovedEndsInWords) {
  for (const char* flags : {"--save-every 1", "--save-every 1 --save-async off", "--save-every 0"}) {
    const fs::path log = folder_ / "log";
    const pid_t run = StartShell("exec " + Command("run", StrCat("--steps 1000000 ", flags)) + " >" + log.string() + " 2>&1");
    for (int i = 0; i < 3000 && Lines("run") < 3; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    fs::rename(folder_ / "run", folder_ / "gone");  // at once, as a removal of many files is not
    fs::remove_all(folder_ / "gone");
    EXPECT_EQ(ExitOf(run), 1) << flags;
    const std::string text = Slurp(log);
    EXPECT_NE(text.find("removed"), std::string::npos) << flags << "\n" << text;
    EXPECT_EQ(text.find("wrote "), std::string::npos) << flags << "\n" << text;
    EXPECT_FALSE(fs::exists(folder_ / "run")) << flags;
  }
}

TEST_F(Interrupted, AFileInTheWayOfACheckpointIsRefusedBeforeTheFirstStep) {
  ASSERT_EQ(Train("run", "--steps 3").code, 0);
  const fs::path file = folder_ / "run/checkpoints" / CheckpointName(6);
  std::ofstream(file) << "mine";
  const Outcome outcome = Train("run", "--steps 6 --resume auto");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.text.find("step-000000006' is no folder but has a checkpoint's name; move it away"), std::string::npos) << outcome.text;
  EXPECT_EQ(outcome.text.find("step 4/6"), std::string::npos) << outcome.text;
  EXPECT_EQ(Slurp(file), "mine");
}

// A kill came between the checkpoint and its line: the line is written when the run goes on.
TEST_F(Interrupted, TheLineOfACheckpointThatAKillTookIsWrittenByTheNextStart) {
  ASSERT_EQ(Train("run", "--steps 3").code, 0);
  std::string metrics = Slurp(folder_ / "run/metrics.jsonl");
  const size_t begin = metrics.rfind("{\"step\":3,\"checkpoint_bytes\"");
  ASSERT_NE(begin, std::string::npos) << metrics;
  const auto written = nlohmann::json::parse(metrics.substr(begin));
  std::ofstream(folder_ / "run/metrics.jsonl") << metrics.substr(0, begin);
  for (int start = 0; start < 2; ++start) {
    ASSERT_EQ(Train("run", "--steps 3 --resume auto").code, 0);
    metrics = Slurp(folder_ / "run/metrics.jsonl");
    ASSERT_EQ(metrics.find("checkpoint_bytes"), metrics.rfind("checkpoint_bytes")) << "once: " << metrics;
    const auto late = nlohmann::json::parse(metrics.substr(metrics.rfind("{\"step\":3,\"checkpoint_bytes\"")));
    EXPECT_EQ(late["checkpoint_bytes"], written["checkpoint_bytes"]);
    EXPECT_TRUE(late["checkpoint_write_ms"].is_null()) << "nobody knows";
    EXPECT_NEAR(late["time"].get<double>(), written["time"].get<double>(), 5);
  }
}

TEST_F(Interrupted, ADryRunOnAReadOnlyDiskPlansAndSaysThatTheRunCannotWrite) {
  const fs::path disk = folder_ / "disk", log = folder_ / "log";
  fs::create_directories(disk);
  const std::string mount = "unshare -rm sh -c 'mount -t tmpfs -o ro none " + disk.string();
  if (std::system((mount + "' >/dev/null 2>&1").c_str()) != 0) GTEST_SKIP() << "no file systems may be mounted here";
  const int code = ExitOf(StartShell(mount + " && exec " + Command("disk/run", "--steps 3 --dry-run") + "' >" + log.string() + " 2>&1"));
  const std::string text = Slurp(log);
  EXPECT_EQ(code, 0) << text;
  EXPECT_NE(text.find("learning-rate = "), std::string::npos) << text;
  EXPECT_NE(text.find(StrCat("notice: '", disk.string(), "' cannot be written (Read-only file system)")), std::string::npos) << text;
  EXPECT_EQ(Train("run", "--steps 3 --dry-run").text.find("notice: '"), std::string::npos);
}

}  // namespace
}  // namespace weir
