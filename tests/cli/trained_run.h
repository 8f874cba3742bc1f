// Runs of the real `weir train` in a folder of their own: to their end, stopped and killed.
#pragma once
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include <nlohmann/json.hpp>

#include "cli/sizes.h"
#include "graph/error.h"
#include "importer/safetensors.h"
#include "optim/checkpoint.h"
#include "tests/slurp.h"

namespace weir {

namespace fs = std::filesystem;

class TrainedRun : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() / ("weir_resume_" + std::string(info->name()) + std::to_string(getpid()));
    fs::create_directories(folder_);
    std::ofstream data(folder_ / "text.txt");
    for (int i = 0; i < 300; ++i) data << "line " << i * i % 97 << " of some text\n";
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Command(const std::string& out, const std::string& more) const {
    return WEIR_PROGRAM " train " WEIR_SOURCE_DIR "/models/olmoe/dynamo18_batched_mm_sdpa.onnx --data " +
           (folder_ / "text.txt").string() + " --out " + (folder_ / out).string() +
           " --sequence 32 --micro-batch 2 --learning-rate 3e-3 " + (more.find("--save-every") == std::string::npos ? "--save-every 3 " : "") + more;
  }
  struct Outcome {
    int code;
    std::string text;
  };
  Outcome Train(const std::string& out, const std::string& more) const {
    const fs::path log = folder_ / (out + ".log");
    const int status = std::system((Command(out, more) + " >" + log.string() + " 2>&1").c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, Slurp(log)};
  }
  // Starts a run and sends `signal` once it has logged `lines` steps. Returns its wait status.
  int Interrupt(const std::string& out, const std::string& more, int lines, int signal) const {
    const pid_t child = fork();
    if (child == 0) {
      execl("/bin/sh", "sh", "-c", ("exec " + Command(out, more) + " 2>/dev/null >/dev/null").c_str(), nullptr);
      _exit(127);
    }
    for (int i = 0; i < 3000 && Lines(out) < lines; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    kill(child, signal);
    int status = 0;
    waitpid(child, &status, 0);
    return status;
  }
  // Of steps and evaluations.
  int64_t Lines(const std::string& out) const {
    std::ifstream file(folder_ / out / "metrics.jsonl");
    int64_t lines = 0;
    for (std::string line; std::getline(file, line);) lines += line.find("checkpoint_bytes") == std::string::npos && !file.eof() ? 1 : 0;
    return lines;
  }
  // The losses as they were written, without times.
  std::vector<std::string> Losses(const std::string& out) const {
    std::vector<std::string> losses;
    std::ifstream file(folder_ / out / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line);
      if (json.contains("eval_loss") || json.contains("checkpoint_bytes")) continue;
      losses.push_back(json["step"].dump() + " " + json["loss"].dump() + " " + json["grad_norm"].dump());
    }
    return losses;
  }
  // The evaluations as they were written, without times.
  std::vector<std::string> Evaluations(const std::string& out) const {
    std::vector<std::string> evaluations;
    std::ifstream file(folder_ / out / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line);
      if (json.contains("eval_loss")) evaluations.push_back(StrCat(json["step"].dump(), " ", json["eval_loss"].dump(), " ", json["eval_tokens"].dump()));
    }
    return evaluations;
  }
  void ExpectSame(const std::string& a, const std::string& b) const {
    EXPECT_EQ(Losses(a), Losses(b));
    EXPECT_EQ(Evaluations(a), Evaluations(b));
    EXPECT_EQ(Slurp(folder_ / a / "weights.safetensors"), Slurp(folder_ / b / "weights.safetensors"));
  }
  // Runs `command` through sh with SIGPIPE and SIGHUP as a login shell has them. Returns its process.
  static pid_t StartShell(const std::string& command) {
    const pid_t child = fork();
    if (child == 0) {
      for (const int signal : {SIGPIPE, SIGHUP}) std::signal(signal, SIG_DFL);
      execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      _exit(127);
    }
    return child;
  }
  static int ExitOf(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  // As Train, with the folder of runs on a file system of that size; nullopt where this user may not mount one.
  std::optional<Outcome> TrainOnSmallDisk(const std::string& size, const std::string& more) const {
    const fs::path disk = folder_ / "disk", log = folder_ / "disk.log";
    fs::create_directories(disk);
    const std::string mount = "unshare -rm sh -c 'mount -t tmpfs -o size=" + size + " none " + disk.string();
    if (std::system((mount + "' >/dev/null 2>&1").c_str()) != 0) return std::nullopt;
    const int code = ExitOf(StartShell(mount + " && exec " + Command("disk/run", more) + "' >" + log.string() + " 2>&1"));
    return Outcome{code, Slurp(log)};
  }
  fs::path folder_;
};

}  // namespace weir
