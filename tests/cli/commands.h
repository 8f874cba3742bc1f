// Runs of the real weir program, its exit codes and what it prints.
#pragma once
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/slurp.h"

namespace weir {

namespace fs = std::filesystem;
inline const fs::path kModels = WEIR_SOURCE_DIR "/models";
inline const std::string kModel = (kModels / "olmoe/dynamo18_batched_mm_sdpa.onnx").string();

struct Result {
  int code;
  std::string output;  // stdout and stderr
};

inline Result Weir(const std::string& arguments) {
  FILE* pipe = popen(("{ " WEIR_PROGRAM " " + arguments + "; } 2>&1").c_str(), "r");
  std::string output;
  char buffer[4096];
  for (size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.append(buffer, n);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
}

class Cli : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() / ("weir_cli_" + std::string(info->name()) + std::to_string(getpid()));
    fs::create_directories(folder_);
    std::ofstream data(folder_ / "data.txt");
    for (int i = 0; i < 400; ++i) data << "the quick brown fox " << i % 7 << " jumps over the lazy dog\n";
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string Train(const std::string& out, const std::string& more = "") const {
    return "train " + kModel + " --data " + (folder_ / "data.txt").string() + " --out " + (folder_ / out).string() +
           " --steps 20 --micro-batch 2 --sequence 32 --learning-rate 3e-3 " + more;
  }
  fs::path folder_;
};

}  // namespace weir
