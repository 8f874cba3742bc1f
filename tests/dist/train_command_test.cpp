// `weir train --device cuda --ranks 2`: processes of the real program.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include <nlohmann/json.hpp>

#include "graph/error.h"
#include "tests/dist/program.h"
#include "tests/kernels/gpu_ranks.h"
#include "tests/slurp.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

class TrainOnGpus : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("weir-train-gpus-" + std::to_string(getpid()));
    fs::create_directories(folder_);
    std::ofstream data(folder_ / "text.txt");
    for (int i = 0; i < 400; ++i) data << "line " << i * i % 97 << " of some text; ";
  }
  void TearDown() override { fs::remove_all(folder_); }

  struct Outcome {
    int code = 0;
    std::string text;
    double seconds = 0;
  };
  // `environment` goes before the command: "WEIR_LINK=copies".
  Outcome Train(const std::string& out, const std::string& flags, const std::string& environment = "") const {
    const fs::path log = folder_ / (out + ".log");
    const std::string command = environment + " " + WeirProgram() + " train " WEIR_SOURCE_DIR "/models/mixtral/dynamo18_batched_mm_eager.onnx --data " +
                                (folder_ / "text.txt").string() + " --data-format text --sequence 16 --micro-batch 2 --threads 1 --out " +
                                (folder_ / out).string() + " " + flags + " >" + log.string() + " 2>&1";
    const auto start = std::chrono::steady_clock::now();
    const int status = std::system(command.c_str());
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    return {WEXITSTATUS(status), Slurp(log), elapsed.count()};
  }
  std::vector<nlohmann::json> Metrics(const std::string& out) const {
    std::vector<nlohmann::json> records;
    std::ifstream file(folder_ / out / "metrics.jsonl");
    for (std::string line; std::getline(file, line) && !file.eof();) records.push_back(nlohmann::json::parse(line));
    return records;
  }
  // Ends rank `rank` of the run in `out` as soon as that has finished a step.
  std::chrono::steady_clock::time_point KillAfterAStep(const std::string& out, int rank) const {
    std::error_code absent;
    for (int i = 0; i < 3000 && (fs::file_size(folder_ / out / "metrics.jsonl", absent) == 0 || absent); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    const std::string folder = (folder_ / out).string() + '\0', place = "WEIR_RANK=" + std::to_string(rank) + '\0';
    for (const auto& process : fs::directory_iterator("/proc")) {
      const bool meant = Slurp(process.path() / "cmdline").find(folder) != std::string::npos &&
                         Slurp(process.path() / "environ").find(place) != std::string::npos;
      if (meant) kill(std::stoi(process.path().filename().string()), SIGKILL);
    }
    return std::chrono::steady_clock::now();
  }

  fs::path folder_;
};

TEST_F(TrainOnGpus, LosesAsTheCpuDoes) {
  WEIR_NEEDS_GPUS(2);
  for (const char* split : {"1", "2"}) {
    const std::string flags = StrCat("--ranks 2 --steps 4 --learning-rate 1e-2 --expert-parallel ", split);
    const std::string on_cpu = StrCat("cpu", split), on_gpus = StrCat("gpus", split);
    const Outcome cpu = Train(on_cpu, flags), gpus = Train(on_gpus, flags + " --device cuda");
    ASSERT_EQ(cpu.code, 0) << cpu.text;
    ASSERT_EQ(gpus.code, 0) << gpus.text;
    const auto want = Metrics(on_cpu), got = Metrics(on_gpus);
    ASSERT_EQ(want.size(), 4u);
    ASSERT_EQ(got.size(), 4u);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i]["tokens"], want[i]["tokens"]);
      EXPECT_NEAR(got[i]["loss"], want[i]["loss"], 1e-5 * want[i]["loss"].get<double>()) << "step " << i + 1;
    }
    EXPECT_NE(got[0]["loss"], got[3]["loss"]);
  }
}

// Processes reach each other's memory in another way than threads.
TEST_F(TrainOnGpus, LinksByCopiesMoveTheSameBytes) {
  WEIR_NEEDS_GPUS(2);
  const std::string flags = "--device cuda --ranks 2 --steps 4 --expert-parallel 2 --chunk-tokens 4 --min-rows 1 --lambda 1";
  for (const char* link : {"nccl", "copies"}) {
    const Outcome outcome = Train(link, flags, StrCat("WEIR_LINK=", link));
    ASSERT_EQ(outcome.code, 0) << outcome.text;
  }
  EXPECT_EQ(Slurp(folder_ / "nccl" / "weights.safetensors"), Slurp(folder_ / "copies" / "weights.safetensors"));
}

// torchrun's agent, environment and store beside them.
TEST_F(TrainOnGpus, AreStartedByTorchrunToo) {
  WEIR_NEEDS_GPUS(2);
  if (std::system("command -v torchrun >/dev/null") != 0) GTEST_SKIP() << "no torchrun on PATH";
  const std::string flags = "--device cuda --steps 4 --expert-parallel 2";
  const Outcome own = Train("own", flags + " --ranks 2");
  const Outcome torchrun = Train("torchrun", flags, StrCat("torchrun --nproc-per-node=2 --master-port=", 20000 + getpid() % 9000, " --no-python"));
  ASSERT_EQ(own.code, 0) << own.text;
  ASSERT_EQ(torchrun.code, 0) << torchrun.text;
  EXPECT_EQ(Slurp(folder_ / "torchrun" / "weights.safetensors"), Slurp(folder_ / "own" / "weights.safetensors"));
}

class TrainOnLinks : public TrainOnGpus, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Kinds, TrainOnLinks, testing::Values("nccl", "copies"), [](const auto& info) { return std::string(info.param); });

TEST_P(TrainOnLinks, EndWithinTenSecondsOfADeath) {
  WEIR_NEEDS_GPUS(2);
  for (const int rank : {1, 0}) {
    const std::string out = StrCat("bereft", rank);
    std::chrono::steady_clock::time_point killed;
    std::thread killer([&] { killed = KillAfterAStep(out, rank); });
    const Outcome outcome = Train(out, "--device cuda --ranks 2 --steps 1000000", StrCat("WEIR_LINK=", GetParam()));
    killer.join();
    const std::chrono::duration<double> after = std::chrono::steady_clock::now() - killed;
    EXPECT_EQ(outcome.code, 128 + SIGKILL) << outcome.text;
    EXPECT_LT(after.count(), 10) << outcome.text;
    if (rank == 1) {
      EXPECT_TRUE(fs::exists(folder_ / out / "weights.safetensors")) << outcome.text;
    }
  }
}

TEST_F(TrainOnGpus, RefuseMoreRanksThanGpusOnce) {
  WEIR_NEEDS_GPUS(1);
  const int ranks = CudaDeviceCount() + 1;
  const Outcome outcome = Train("many", StrCat("--device cuda --steps 1 --ranks ", ranks));
  EXPECT_EQ(outcome.code, 2) << outcome.text;
  const std::string told = StrCat("this machine has ", ranks, " ranks and ", ranks - 1, " devices");
  const auto at = outcome.text.find(told);
  EXPECT_NE(at, std::string::npos) << outcome.text;
  EXPECT_EQ(outcome.text.find(told, at + 1), std::string::npos) << outcome.text;
}

}  // namespace
}  // namespace weir
