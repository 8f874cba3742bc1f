// The real program, killed at random moments and started again, ends in the bytes of a run that was left alone.
// WEIR_CRASHES=200 for the slow tests, fewer where the machine is too slow for their time; a few otherwise.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <vector>

#include "graph/error.h"
#include "tests/slurp.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

class Crash : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    std::ofstream data(folder_ / "text.txt");
    for (int i = 0; i < 300; ++i) data << "line " << i * i % 97 << " of some text\n";
    std::ofstream(folder_ / "held.txt") << "line 1 of a text held out";
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Every step a checkpoint, every fifth an evaluation: most of the time is spent writing.
  std::string Command(const std::string& out, int64_t steps, const std::string& more = "") const {
    return StrCat("exec " WEIR_PROGRAM " train " WEIR_SOURCE_DIR "/models/olmoe/dynamo18_batched_mm_sdpa.onnx --data ", (folder_ / "text.txt").string(),
                  " --eval-data ", (folder_ / "held.txt").string(), " --eval-every 5 --save-every 1 --keep 2 --sequence 16 --micro-batch 1",
                  " --learning-rate 1e-5 --skip-loss-z 0.3 --tensorboard --resume auto --steps ", steps, " ", more, " --out ", (folder_ / out).string(), " >",
                  (folder_ / (out + ".log")).string(), " 2>&1");
  }
  int Finish(const std::string& command) const {
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  // Processes that `parent` started; none when it has ended.
  static std::vector<pid_t> Children(pid_t parent) {
    std::ifstream file(StrCat("/proc/", parent, "/task/", parent, "/children"));
    return {std::istream_iterator<pid_t>(file), {}};
  }
  // Kills the program, or, of the ranks that it started, the `victim`-th. True when the run had ended before.
  bool KillAfter(const std::string& command, std::chrono::milliseconds time, int victim = -1) const {
    const pid_t child = fork();
    if (child == 0) {
      execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      _exit(127);
    }
    std::this_thread::sleep_for(time);
    const auto ranks = Children(child);
    kill(victim >= 0 && victim < std::ssize(ranks) ? ranks[static_cast<size_t>(victim)] : child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    return !WIFSIGNALED(status) && WEXITSTATUS(status) == 0;
  }
  // What was logged, without times.
  std::string Metrics(const std::string& out) const {
    std::string text;
    std::ifstream file(folder_ / out / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      auto json = nlohmann::json::parse(line);
      if (json.contains("checkpoint_bytes")) continue;
      for (const char* key : {"time", "step_ms", "tokens_per_s", "model_tflops", "eval_ms", "split_s", "split_longest_s"}) json.erase(key);
      text += json.dump() + "\n";
    }
    return text;
  }

  // The steps whose checkpoints are in metrics.jsonl.
  std::vector<int64_t> Saved(const std::string& out) const {
    std::vector<int64_t> steps;
    std::ifstream file(folder_ / out / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line);
      if (json.contains("checkpoint_bytes")) steps.push_back(json["step"]);
    }
    return steps;
  }

  // Of `asked` rounds those whose run left alone takes a third of kMostTime: as much goes to the killed ones and to the last.
  int Affordable(int asked, const std::string& flags) const {
    if (asked <= 8) return asked;
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(Finish(Command("probe", 40, flags)), 0) << Slurp(folder_ / "probe.log");
    const auto step = (std::chrono::steady_clock::now() - start) / 40;
    return static_cast<int>(std::clamp<int64_t>((kMostTime / 3 / step - 40) / 8, 8, asked));
  }
  // A run killed at `asked` random moments, by `kill(command, time)`, ends in the bytes of one that was left alone.
  void Survives(int asked, const std::string& flags, const std::function<bool(const std::string&, std::chrono::milliseconds, std::mt19937&)>& kill) {
    const int crashes = Affordable(asked, flags);
    const int64_t steps = 8 * crashes + 40;  // loss spikes are known after 32
    const auto start = std::chrono::steady_clock::now();
    ASSERT_EQ(Finish(Command("whole", steps, flags)), 0) << Slurp(folder_ / "whole.log");
    const auto whole = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
    const auto longest = std::max<int64_t>(100, 2 * whole.count() / crashes);
    std::mt19937 random(7);
    int killed = 0, rounds = 0;
    for (; rounds < crashes && (rounds < 4 || std::chrono::steady_clock::now() + whole - start < kMostTime); ++rounds) {
      const std::chrono::milliseconds time(std::uniform_int_distribution<int64_t>(1, longest)(random));
      killed += kill(Command("parts", steps, flags), time, random) ? 0 : 1;
    }
    ASSERT_EQ(Finish(Command("parts", steps, flags)), 0) << Slurp(folder_ / "parts.log");
    RecordProperty("killed", killed);
    if (rounds < asked) std::cout << "killed in " << rounds << " rounds of the " << asked << " asked for: this machine has no time for more now\n";
    EXPECT_GE(killed, rounds / 3) << "of " << rounds << ", within " << longest << " ms each";
    EXPECT_EQ(Metrics("whole"), Metrics("parts"));
    EXPECT_EQ(Saved("whole").size(), static_cast<size_t>(steps)) << "every step";
    EXPECT_EQ(Saved("whole"), Saved("parts")) << "no line of a checkpoint is lost";
    EXPECT_NE(Metrics("whole").find("\"spike\":true"), std::string::npos) << "the running mean is part of what is resumed";
    EXPECT_EQ(Slurp(folder_ / "whole/weights.safetensors"), Slurp(folder_ / "parts/weights.safetensors"));
    for (const auto& entry : fs::directory_iterator(folder_ / "parts/checkpoints")) {
      EXPECT_TRUE(entry.path().filename().string().starts_with("step-")) << entry.path();
    }
  }
  static int Crashes(int otherwise) {
    const char* asked = std::getenv("WEIR_CRASHES");
    return asked == nullptr ? otherwise : std::atoi(asked);
  }
  static constexpr std::chrono::seconds kMostTime{480};  // of one Survives; three are in a test's 1800 s
  const fs::path folder_ = fs::temp_directory_path() / ("weir_crash_" + std::to_string(getpid()));
};

// SAV-01
TEST_F(Crash, KilledAtRandomMomentsEndsInTheSameBytes_SAV01) {
  for (const auto& [flags, crashes] : {std::pair("", 8), {"--save-async off", 4}}) {
    TearDown();
    SetUp();
    Survives(Crashes(crashes), flags, [&](const std::string& command, auto time, auto&) { return KillAfter(command, time); });
  }
}

// One of two ranks, each of which writes its part: the other ends by itself, and what is not whole is no checkpoint.
TEST_F(Crash, ARankKilledAtRandomMomentsEndsInTheSameBytes_SAV01) {
  Survives(Crashes(4), "--ranks 2 --threads 1 --expert-parallel 2 --shard-optimizer",
           [&](const std::string& command, auto time, auto& random) { return KillAfter(command, time, std::uniform_int_distribution<int>(0, 1)(random)); });
}

// A disk that takes no more than 300 KiB of one file: no checkpoint fits.
TEST_F(Crash, AFullDiskEndsTheRunInWordsAndLeavesNothingHalf) {
  EXPECT_EQ(Finish("ulimit -f 600; " + Command("run", 5)), 1);
  const std::string log = Slurp(folder_ / "run.log");
  EXPECT_NE(log.find("cannot write"), std::string::npos) << log;
  EXPECT_TRUE(!fs::exists(folder_ / "run/checkpoints") || fs::is_empty(folder_ / "run/checkpoints"));
  ASSERT_EQ(Finish(Command("run", 5)), 0) << "with room again: " << Slurp(folder_ / "run.log");
  ASSERT_EQ(Finish(Command("whole", 5)), 0);
  EXPECT_EQ(Slurp(folder_ / "whole/weights.safetensors"), Slurp(folder_ / "run/weights.safetensors"));
}

// SAV-07: the permission.
TEST_F(Crash, APlaceThatCannotBeWrittenIsToldBeforeTheFirstStep_SAV07) {
  std::string command = Command("run", 5);
  const std::string out = (folder_ / "run").string();
  command.replace(command.find("--out " + out) + 6, out.size(), "/proc/weir-run");
  EXPECT_EQ(Finish(command), 1);
  EXPECT_NE(Slurp(folder_ / "run.log").find("cannot create run folder"), std::string::npos) << Slurp(folder_ / "run.log");
}

}  // namespace
}  // namespace weir
