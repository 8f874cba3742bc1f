// `weir train --ranks`: processes of the real program.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <thread>

#include <nlohmann/json.hpp>

#include "graph/error.h"
#include "importer/safetensors.h"
#include "tests/slurp.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

class TrainRanks : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("weir-train-ranks-" + std::to_string(getpid()));
    fs::remove_all(folder_);
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
  // `environment` goes before the command: "RANK=0 WORLD_SIZE=2".
  Outcome Train(const std::string& out, const std::string& flags, const std::string& environment = "") const {
    const fs::path log = folder_ / (out + ".log");
    const std::string command = environment + " " WEIR_PROGRAM " train " WEIR_SOURCE_DIR
                                "/models/mixtral/dynamo18_batched_mm_eager.onnx --data " + (folder_ / "text.txt").string() +
                                " --data-format text --sequence 16 --threads 1 --out " + (folder_ / out).string() + " " + flags +
                                " >" + log.string() + " 2>&1";
    const auto start = std::chrono::steady_clock::now();
    const int status = std::system(command.c_str());
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    return {WEXITSTATUS(status), Slurp(log), elapsed.count()};
  }

  std::vector<nlohmann::json> Metrics(const std::string& out) const {
    std::vector<nlohmann::json> records;
    std::ifstream file(folder_ / out / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      if (line.find("checkpoint_bytes") == std::string::npos) records.push_back(nlohmann::json::parse(line));
    }
    return records;
  }

  // To one rank of the run in `out`, when that has finished a step.
  void SignalAfterAStep(const std::string& out, int rank, int signal) const {
    std::error_code absent;
    for (int i = 0; i < 1500 && (fs::file_size(folder_ / out / "metrics.jsonl", absent) == 0 || absent); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    const std::string folder = (folder_ / out).string() + '\0', place = "WEIR_RANK=" + std::to_string(rank) + '\0';
    for (const auto& process : fs::directory_iterator("/proc")) {
      const bool meant = Slurp(process.path() / "cmdline").find(folder) != std::string::npos &&
                         Slurp(process.path() / "environ").find(place) != std::string::npos;
      if (meant) kill(std::stoi(process.path().filename().string()), signal);
    }
  }

  fs::path folder_;
};

TEST_F(TrainRanks, RepeatTheirBytesAndMatchOneRank) {
  const std::string two = "--ranks 2 --steps 3 --micro-batch 2 --learning-rate 1e-2";
  for (const char* out : {"a", "b"}) {
    const Outcome outcome = Train(out, two);
    ASSERT_EQ(outcome.code, 0) << outcome.text;
  }
  EXPECT_EQ(Slurp(folder_ / "a" / "weights.safetensors"), Slurp(folder_ / "b" / "weights.safetensors"));
  const Outcome one = Train("one", "--ranks 1 --steps 3 --micro-batch 4 --learning-rate 1e-2");
  ASSERT_EQ(one.code, 0) << one.text;
  const auto a = Metrics("a"), b = Metrics("b"), single = Metrics("one");
  ASSERT_EQ(a.size(), 3u);
  ASSERT_EQ(single.size(), 3u);
  for (size_t i = 0; i < a.size(); ++i) {
    for (const char* key : {"loss", "grad_norm", "tokens"}) EXPECT_EQ(a[i][key], b[i][key]) << key;
    EXPECT_EQ(a[i]["tokens"], single[i]["tokens"]);
    // The same samples; sums regrouped in float32.
    EXPECT_NEAR(a[i]["loss"], single[i]["loss"], 1e-5 * single[i]["loss"].get<double>()) << i;
    EXPECT_NEAR(a[i]["grad_norm"], single[i]["grad_norm"], 1e-4 * single[i]["grad_norm"].get<double>()) << i;
  }
  EXPECT_NE(a[0]["loss"], a[2]["loss"]);
}

// Experts on two ranks: chunks and lent experts change no bit, and the file has all experts.
TEST_F(TrainRanks, StreamTheirExpertsWithTheSameBytes) {
  const std::string flags = "--ranks 2 --expert-parallel 2 --steps 2 --micro-batch 1 --learning-rate 1e-2 --log-load-every 2 ";
  const Outcome whole = Train("whole", flags), chunks = Train("chunks", flags + "--chunk-tokens 3 --lambda 1 --alpha 1 --min-rows 1 --max-foreign 2");
  ASSERT_EQ(whole.code, 0) << whole.text;
  ASSERT_EQ(chunks.code, 0) << chunks.text;
  EXPECT_EQ(Slurp(folder_ / "whole" / "weights.safetensors"), Slurp(folder_ / "chunks" / "weights.safetensors"));
  // The same routes, of both ranks; more chunks and some lent experts.
  const auto plain = Metrics("whole").back(), streamed = Metrics("chunks").back();
  EXPECT_EQ(plain["expert_routes"], streamed["expert_routes"]);
  EXPECT_TRUE(plain.contains("split_longest_s"));
  EXPECT_EQ(plain["expert_helpers"][0], 0);
  EXPECT_GT(streamed["expert_chunks"][0], plain["expert_chunks"][0]);
  EXPECT_GT(streamed["expert_helpers"][0].get<int64_t>() + streamed["expert_helpers"][1].get<int64_t>(), 0);
  const Outcome one = Train("one", "--steps 2 --micro-batch 2 --learning-rate 1e-2");
  ASSERT_EQ(one.code, 0) << one.text;
  const auto spread = ReadSafetensors(folder_ / "whole" / "weights.safetensors").tensors;
  const auto alone = ReadSafetensors(folder_ / "one" / "weights.safetensors").tensors;
  ASSERT_EQ(spread.size(), alone.size());
  for (const auto& [name, tensor] : alone) EXPECT_EQ(spread.at(name)->dims(), tensor->dims()) << name;
}

// Two ranks share each sequence: one rank's samples, loss and tokens, the same bytes whatever the knobs and when resumed.
// VCE-13: labels are shifted before a sequence is cut, so the last position of a part has the first token of the next one.
TEST_F(TrainRanks, ShareEachSequence) {
  const std::string two = "--ranks 2 --context-parallel 2 --micro-batch 2 --learning-rate 1e-2 --schedule constant ";
  const Outcome plain = Train("plain", two + "--steps 4"), knobs = Train("knobs", two + "--steps 4 --recompute layer --strip 64");
  ASSERT_EQ(plain.code, 0) << plain.text;
  ASSERT_EQ(knobs.code, 0) << knobs.text;
  EXPECT_EQ(Slurp(folder_ / "plain" / "weights.safetensors"), Slurp(folder_ / "knobs" / "weights.safetensors"));
  for (const char* steps : {"2", "4"}) {
    const Outcome part = Train("parts", two + "--save-every 2 --resume auto --steps " + steps);
    ASSERT_EQ(part.code, 0) << part.text;
  }
  EXPECT_EQ(Slurp(folder_ / "plain" / "weights.safetensors"), Slurp(folder_ / "parts" / "weights.safetensors"));
  const Outcome one = Train("one", "--steps 4 --micro-batch 2 --learning-rate 1e-2 --schedule constant");
  ASSERT_EQ(one.code, 0) << one.text;
  const auto shared = Metrics("plain"), single = Metrics("one");
  ASSERT_EQ(shared.size(), 4u);
  for (size_t i = 0; i < shared.size(); ++i) {
    EXPECT_EQ(shared[i]["tokens"], single[i]["tokens"]);
    EXPECT_NEAR(shared[i]["loss"], single[i]["loss"], 1e-5 * single[i]["loss"].get<double>()) << i;
    EXPECT_NEAR(shared[i]["grad_norm"], single[i]["grad_norm"], 1e-4 * single[i]["grad_norm"].get<double>()) << i;
  }
}

TEST_F(TrainRanks, RefuseSequencesThatCannotBeShared) {
  const Outcome odd = Train("odd", "--ranks 3 --context-parallel 3"), ranks = Train("ranks", "--ranks 2 --context-parallel 4");
  EXPECT_EQ(odd.code, 2);
  EXPECT_NE(odd.text.find("--context-parallel 3 must divide --sequence 16"), std::string::npos) << odd.text;
  EXPECT_EQ(ranks.code, 2);
  EXPECT_NE(ranks.text.find("--context-parallel 4 must divide the 2 ranks"), std::string::npos) << ranks.text;
}

// The head on four ranks: no bit changes, and the file has all of it.
TEST_F(TrainRanks, SpreadTheirHeadWithTheSameBytes) {
  const std::string flags = "--ranks 4 --micro-batch 1 --learning-rate 1e-2 --schedule constant --strip 64 --vocab-leaf 64 --vocab-parallel ";
  for (const char* degree : {"1", "4"}) {
    const Outcome outcome = Train(degree, flags + degree + " --steps 2");
    ASSERT_EQ(outcome.code, 0) << outcome.text;
  }
  EXPECT_EQ(Slurp(folder_ / "1" / "weights.safetensors"), Slurp(folder_ / "4" / "weights.safetensors"));
  EXPECT_NE(Slurp(folder_ / "4" / "passes.log").find("shard_vocabulary"), std::string::npos);
  for (const char* steps : {"1", "2"}) {
    const Outcome part = Train("parts", flags + "2 --save-every 1 --resume auto --steps " + steps);
    ASSERT_EQ(part.code, 0) << part.text;
  }
  EXPECT_EQ(Slurp(folder_ / "1" / "weights.safetensors"), Slurp(folder_ / "parts" / "weights.safetensors"));
  const Outcome uneven = Train("uneven", "--ranks 4 --steps 2 --vocab-parallel 3");
  EXPECT_EQ(uneven.code, 2);
  EXPECT_NE(uneven.text.find("--vocab-parallel 3 must divide the 4 ranks"), std::string::npos) << uneven.text;
}

// 307 columns of 64 floats in leaves of 64: rank 0 of four holds 128 of them, in weights and moments; gradients of all.
TEST_F(TrainRanks, PlanTheShareOfTheHead) {
  const auto ledger = [&](int vocabulary_parallel) {
    const fs::path file = folder_ / "plan.json";
    const std::string command = WEIR_PROGRAM " plan " WEIR_SOURCE_DIR "/models/mixtral/dynamo18_batched_mm_eager.onnx --sequence 16 --json "
                                "--ranks 4 --strip 64 --vocab-leaf 64 --vocab-parallel " + std::to_string(vocabulary_parallel) + " >" + file.string();
    EXPECT_EQ(std::system(command.c_str()), 0);
    return nlohmann::json::parse(Slurp(file)).at("ledger");
  };
  const auto one = ledger(1), four = ledger(4);
  const int64_t gone = (307 - 128) * 64 * 4;
  for (const auto& [term, copies] : {std::pair("weights", 1), {"grads", 0}, {"optimizer", 2}}) {
    EXPECT_EQ(one.at(term).get<int64_t>() - four.at(term).get<int64_t>(), copies * gone) << term;
  }
}

// Experts and optimizer spread over ranks are saved whole: stopped and resumed, the same bytes, in another layout too.
TEST_F(TrainRanks, ResumeWhatIsSpread) {
  const std::string flags = "--ranks 2 --micro-batch 1 --learning-rate 1e-2 --schedule constant ", spread = flags + "--expert-parallel 2 --shard-parameters all ";
  const Outcome through = Train("through", spread + "--steps 4"), twin = Train("twin", flags + "--expert-parallel 2 --steps 4");
  ASSERT_EQ(through.code, 0) << through.text;
  ASSERT_EQ(twin.code, 0) << twin.text;
  EXPECT_EQ(Slurp(folder_ / "through" / "weights.safetensors"), Slurp(folder_ / "twin" / "weights.safetensors"));
  for (const char* steps : {"2", "4"}) {
    const Outcome part = Train("parts", spread + "--save-every 2 --resume auto --steps " + steps);
    ASSERT_EQ(part.code, 0) << part.text;
  }
  EXPECT_EQ(Slurp(folder_ / "through" / "weights.safetensors"), Slurp(folder_ / "parts" / "weights.safetensors"));
  const Outcome alone = Train("parts", "--micro-batch 2 --learning-rate 1e-2 --schedule constant --save-every 2 --resume auto --steps 6");
  EXPECT_EQ(alone.code, 0) << alone.text;
  EXPECT_EQ(Metrics("parts").size(), 6u);
  const Outcome one = Train("one", "--shard-optimizer");
  EXPECT_EQ(one.code, 2);
  EXPECT_NE(one.text.find("--shard-optimizer spreads over several ranks"), std::string::npos) << one.text;
  for (const auto& [wrong, why] : {std::pair{"--shard-parameters all", "--shard-parameters spreads over several ranks"},
                                   {"--ranks 2 --shard-parameters whole", "use none, weights or all"},
                                   {"--ranks 2 --shard-parameters all --grad-accumulation 2", "needs --grad-accumulation 1, or use weights"}}) {
    const Outcome refused = Train("one", wrong);
    EXPECT_EQ(refused.code, 2) << wrong;
    EXPECT_NE(refused.text.find(why), std::string::npos) << refused.text;
  }
}

// Mixtral of 2 layers, 5 experts of 3 x 64 x 12 floats: rank 0 of two holds 3 of them, in weights, gradients and moments.
TEST_F(TrainRanks, PlanTheFullestRank) {
  const auto ledger = [&](int expert_parallel) {
    const fs::path file = folder_ / "plan.json";
    const std::string command = WEIR_PROGRAM " plan " WEIR_SOURCE_DIR "/models/mixtral/dynamo18_batched_mm_eager.onnx --sequence 16 --json "
                                "--ranks 4 --chunk-tokens 16 --expert-parallel " + std::to_string(expert_parallel) + " >" + file.string() +
                                " 2>" + (folder_ / "notices").string();
    EXPECT_EQ(std::system(command.c_str()), 0);
    return nlohmann::json::parse(Slurp(file)).at("ledger");
  };
  const auto one = ledger(1), two = ledger(2);
  const int64_t expert = 3 * 64 * 12 * 4, gone = 2 * (5 - 3) * expert;
  for (const auto& [term, copies] : {std::pair("weights", 1), {"grads", 1}, {"optimizer", 2}}) {
    EXPECT_EQ(one.at(term).get<int64_t>() - two.at(term).get<int64_t>(), copies * gone) << term;
  }
  EXPECT_NE(Slurp(folder_ / "notices").find("experts: 5 over 2 ranks"), std::string::npos);
}

// The signal reaches one rank only; all stop after the same step and the weights are those of it.
TEST_F(TrainRanks, StopTogetherOnASignalToOneOfThem) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    const std::string out = "stopped" + std::to_string(signal);
    std::thread sender([&] { SignalAfterAStep(out, 1, signal); });
    const Outcome outcome = Train(out, "--ranks 3 --steps 1000000 --micro-batch 1");
    sender.join();
    EXPECT_EQ(outcome.code, 1) << outcome.text;
    EXPECT_LT(outcome.seconds, 60);
    const std::string told = "after step " + std::to_string(Metrics(out).size()) + " of 1000000; its weights are in";
    EXPECT_NE(outcome.text.find(told), std::string::npos) << outcome.text;
    EXPECT_EQ(outcome.text.find("[1]"), std::string::npos) << outcome.text;
    EXPECT_NE(outcome.text.find("told to stop"), std::string::npos) << outcome.text;
    EXPECT_EQ(outcome.text.find("told to stop"), outcome.text.rfind("told to stop")) << outcome.text;
    EXPECT_TRUE(fs::exists(folder_ / out / "weights.safetensors"));
  }
}

// timeout sends SIGINT to the program and then to its group: one interrupt, not two.
TEST_F(TrainRanks, StopOnCtrlC) {
  const Outcome outcome = Train("interrupted", "--ranks 2 --steps 1000000 --micro-batch 1", "timeout --signal=INT 2");
  EXPECT_NE(outcome.text.find("stopped by signal 2"), std::string::npos) << outcome.text;
  EXPECT_TRUE(fs::exists(folder_ / "interrupted" / "weights.safetensors"));
}

TEST_F(TrainRanks, SaveTheLastStepWhenAPeerDies) {
  std::thread sender([&] { SignalAfterAStep("bereft", 2, SIGKILL); });
  const Outcome outcome = Train("bereft", "--ranks 3 --steps 1000000 --micro-batch 1");
  sender.join();
  EXPECT_EQ(outcome.code, 128 + SIGKILL) << outcome.text;
  EXPECT_LT(outcome.seconds, 60);
  const std::string kept = "weights after step " + std::to_string(Metrics("bereft").size()) + " are in ";
  EXPECT_NE(outcome.text.find(kept), std::string::npos) << outcome.text;
  EXPECT_TRUE(fs::exists(folder_ / "bereft" / "weights.safetensors"));
}

// LNC-01: rank 0 fails alone, before the first step.
TEST_F(TrainRanks, EndWithinSecondsWhenRank0CannotWrite) {
  fs::create_directories(folder_ / "used" / "old");
  const Outcome outcome = Train("used", "--ranks 3 --steps 1000000 --micro-batch 1");
  EXPECT_EQ(outcome.code, 1) << outcome.text;
  EXPECT_LT(outcome.seconds, 30);
  EXPECT_NE(outcome.text.find("is not empty; give another --out"), std::string::npos) << outcome.text;
  EXPECT_NE(outcome.text.find("[1] weir train: rank 1 stopped: CommError: rank 0 failed"), std::string::npos) << outcome.text;
}

TEST_F(TrainRanks, RefuseFlagsThatContradictTheLauncher) {
  const Outcome outcome = Train("x", "--ranks 4", "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.text.find("--ranks=4, but torchrun started this process as rank 1 of 2"), std::string::npos) << outcome.text;
}

TEST_F(TrainRanks, RefuseDifferentFlagsOnOtherRanks) {
  const std::string common = "WORLD_SIZE=2 WEIR_RENDEZVOUS=" + (folder_ / "rendezvous").string();
  Outcome first, second;
  std::thread other([&] { second = Train("second", "--steps 2", common + " RANK=1"); });
  first = Train("first", "--steps 3", common + " RANK=0");
  other.join();
  EXPECT_NE(first.code, 0);
  EXPECT_NE(second.code, 0);
  EXPECT_NE((first.text + second.text).find("rank 1 was started with other flags than rank 0:\n  --"), std::string::npos)
      << first.text << second.text;
  EXPECT_NE((first.text + second.text).find("--steps: 3 on rank 0, 2 here"), std::string::npos) << first.text << second.text;
}

// Two machines, each with a folder of its own.
TEST_F(TrainRanks, CheckpointsNeedAFolderThatAllRanksShare_SAV02) {
  const std::string common = "WORLD_SIZE=2 WEIR_RENDEZVOUS=" + (folder_ / "rendezvous").string();
  const auto train = [&](int rank) {
    const fs::path home = folder_ / std::to_string(rank), log = folder_ / StrCat(rank, ".log");
    fs::create_directories(home);
    const std::string command = StrCat("cd ", home.string(), " && RANK=", rank, " ", common, " " WEIR_PROGRAM " train " WEIR_SOURCE_DIR
                                       "/models/mixtral/dynamo18_batched_mm_eager.onnx --data ", (folder_ / "text.txt").string(),
                                       " --data-format text --sequence 16 --threads 1 --steps 2 --save-every 1 --out run >", log.string(), " 2>&1");
    return std::system(command.c_str());
  };
  int other = 0;
  std::thread second([&] { other = train(1); });
  const int first = train(0);
  second.join();
  EXPECT_NE(first, 0);
  EXPECT_NE(other, 0);
  const std::string text = Slurp(folder_ / "0.log") + Slurp(folder_ / "1.log");
  EXPECT_NE(text.find("rank 1 does not find 'run/checkpoints', which rank 0 has made"), std::string::npos) << text;
}

// Rank 1 may end before rank 0 has met it: what rank 0 has written is there all the same.
TEST_F(TrainRanks, ANonFiniteStepTellsOfTheWeightsThatWereSaved) {
  for (int i = 0; i < 5; ++i) {
    const std::string out = StrCat("nan", i);
    const Outcome outcome = Train(out, "--ranks 4 --steps 5 --micro-batch 1 --learning-rate 1e30 --max-norm 0");
    EXPECT_EQ(outcome.code, 1) << outcome.text;
    EXPECT_TRUE(fs::exists(folder_ / out / "weights.safetensors"));
    EXPECT_EQ(outcome.text.find("no weights were saved"), std::string::npos) << outcome.text;
    const std::string words = "weights after step 1 are in ";
    EXPECT_NE(outcome.text.find(words), std::string::npos) << outcome.text;
    EXPECT_EQ(outcome.text.find(words), outcome.text.rfind(words)) << "all ranks say the same, told once: " << outcome.text;
    EXPECT_EQ(outcome.text.find("DeviceError"), outcome.text.rfind("DeviceError")) << outcome.text;
  }
}

// A batch script that forgets srun: one process of a job of eight tasks.
TEST_F(TrainRanks, ASlurmJobWithoutSrunRunsAloneAndSaysSo) {
  const std::string job = "SLURM_JOB_ID=77 SLURM_NTASKS=8 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODELIST='gpu[07-08]'";
  const Outcome alone = Train("alone", "--steps 1", job);
  EXPECT_EQ(alone.code, 0) << alone.text;
  EXPECT_LT(alone.seconds, 20);
  EXPECT_NE(alone.text.find("notice: this SLURM job has 8 tasks, but srun did not start this process: it runs alone; put `srun` before `weir`"), std::string::npos) << alone.text;
  for (const char* flags : {"--steps 1 --ranks 1", "--steps 1 --ranks 2"}) {
    const Outcome meant = Train(StrCat("meant", flags[std::string(flags).size() - 1]), flags, job);
    EXPECT_EQ(meant.code, 0) << meant.text;
    EXPECT_EQ(meant.text.find("SLURM"), std::string::npos) << meant.text;
  }
}

TEST_F(TrainRanks, NameTheRankThatDoesNotCome) {
  const Outcome outcome =
      Train("x", "--start-timeout 1", "RANK=0 WORLD_SIZE=2 WEIR_RENDEZVOUS=" + (folder_ / "rendezvous").string());
  EXPECT_NE(outcome.code, 0);
  EXPECT_LT(outcome.seconds, 20);
  EXPECT_NE(outcome.text.find("rank 1 of 2 did not come within 1 s"), std::string::npos) << outcome.text;
}

}  // namespace
}  // namespace weir
