// The command line as a user meets it: the weir program itself, its exit codes, messages and files.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "importer/safetensors.h"
#include "tests/slurp.h"

namespace weir {
namespace {

namespace fs = std::filesystem;
const fs::path kModels = WEIR_SOURCE_DIR "/models";
const std::string kModel = (kModels / "olmoe/dynamo18_batched_mm_sdpa.onnx").string();

struct Result {
  int code;
  std::string output;  // stdout and stderr
};

Result Weir(const std::string& arguments) {
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

TEST_F(Cli, HelpVersionAndUnknownCommand) {
  EXPECT_EQ(Weir("--help").code, 0);
  EXPECT_EQ(Weir("--version").code, 0);
  const Result typo = Weir("trian");
  EXPECT_EQ(typo.code, 2);
  EXPECT_NE(typo.output.find("did you mean 'train'"), std::string::npos) << typo.output;
  EXPECT_EQ(Weir("train --help").code, 0);
}

TEST_F(Cli, UnknownFlagNamesTheNearestOne) {
  const Result result = Weir(Train("a", "--learning-rat 1"));
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.output.find("did you mean 'learning-rate'"), std::string::npos) << result.output;
}

TEST_F(Cli, UnknownConfigKeyIsRefusedAndFlagsWinOverTheFile) {
  std::ofstream(folder_ / "bad.ini") << "stepz = 3\n";
  const Result bad = Weir(Train("a", "--config " + (folder_ / "bad.ini").string()));
  EXPECT_EQ(bad.code, 2);
  EXPECT_NE(bad.output.find("steps"), std::string::npos) << bad.output;
  std::ofstream(folder_ / "good.ini") << "steps = 3\nseed = 5\n";
  const Result good = Weir(Train("b", "--config " + (folder_ / "good.ini").string()));
  ASSERT_EQ(good.code, 0) << good.output;
  const std::string resolved = Slurp(folder_ / "b/config.ini");
  EXPECT_NE(resolved.find("steps = 20\n"), std::string::npos) << resolved;
  EXPECT_NE(resolved.find("seed = 5\n"), std::string::npos) << resolved;
}

TEST_F(Cli, AConfigFileIsHeldToTheSameRules) {
  std::ofstream(folder_ / "negative.ini") << "seed = -1\n";
  const Result negative = Weir(Train("a", "--config " + (folder_ / "negative.ini").string()));
  EXPECT_EQ(negative.code, 2);
  EXPECT_NE(negative.output.find("--seed=-1"), std::string::npos) << negative.output;
  std::ofstream(folder_ / "odd.ini") << "[run]\n";
  EXPECT_EQ(Weir(Train("a", "--config " + (folder_ / "odd.ini").string())).code, 2);
}

TEST_F(Cli, AWrongValueOfAConfigFileNamesItsLine) {
  const std::string file = (folder_ / "wrong.ini").string();
  const auto told = [&](const std::string& text, const std::string& flags, const std::string& expected) {
    std::ofstream(file) << text;
    const Result result = Weir(Train("a", "--config " + file + " " + flags));
    EXPECT_EQ(result.code, 2) << text;
    EXPECT_NE(result.output.find(expected), std::string::npos) << text << result.output;
    return result.output;
  };
  const std::string in = "config file '" + file + "', line ";
  told("# no number\nmax-norm = much\n", "", "--max-norm: " + in + "2");
  told("max-norm = 1\n\nbeta2 = 7\n", "", "--beta2: " + in + "3");
  told("stepz = 3\n", "", in + "1: unknown option 'stepz'; did you mean 'steps'?");
  told("seed = -1\n", "", "--seed: " + in + "1");
  told("strip = 8\nstash = half\n", "", "--stash: " + in + "2");
  EXPECT_EQ(told("beta2 = 7\n", "--beta2 8", "--beta2 must be").find("line"), std::string::npos) << "the command line's value is wrong, not the file's";
}

TEST_F(Cli, FlagsThatChangeNothingAreTold) {
  const auto notices = [&](const std::string& flags) {
    std::string found;
    std::istringstream lines(Weir(Train("a", flags + " --dry-run")).output);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("notice: ")) found += line + "\n";
    }
    return found;
  };
  EXPECT_EQ(notices("--deterministic"), "notice: --deterministic changes nothing here: on the CPU every run gives the same bits\n");
  EXPECT_EQ(notices("--alpha 1.2 --min-rows 3"), "notice: --alpha, --min-rows changes nothing here: with --expert-parallel 1 no expert is lent\n");
  EXPECT_EQ(notices("--reduce-beside"), "notice: --reduce-beside changes nothing here: one rank has no sums over ranks\n");
  EXPECT_EQ(notices("--ranks 2 --expert-parallel 2 --alpha 1.2 --reduce-beside"), "");
  EXPECT_EQ(notices(""), "");
}

TEST_F(Cli, AFolderMayHoldANumberSign) {
  fs::copy(folder_ / "data.txt", folder_ / "data #1.txt");
  const std::string data = (folder_ / "data #1.txt").string(), out = (folder_ / "run#1").string();
  std::ofstream(folder_ / "run.ini") << "data = \"" << data << "\"\nout = " << out << "\nmodel = " << kModel
                                     << "\nsteps = 2 # few\nmicro-batch = 2\nsequence = 32\n";
  const Result first = Weir("train --config " + (folder_ / "run.ini").string());
  ASSERT_EQ(first.code, 0) << first.output;
  const Result again = Weir("train --config '" + out + "/config.ini' --out " + (folder_ / "b").string());
  ASSERT_EQ(again.code, 0) << again.output;
  EXPECT_EQ(Slurp(fs::path(out) / "weights.safetensors"), Slurp(folder_ / "b/weights.safetensors"));
}

TEST_F(Cli, AFullStandardOutputIsAFailure) {
  for (const std::string& command : std::initializer_list<std::string>{
           "import " + kModel, "import " + kModel + " --json", "plan " + kModel + " --sequence 32", "--help", "train --help"}) {
    const Result result = Weir(command + " 2>&1 > /dev/full");
    EXPECT_EQ(result.code, 1) << command;
    EXPECT_NE(result.output.find("cannot write to standard output"), std::string::npos) << result.output;
  }
}

TEST_F(Cli, ResolvedConfigReproducesTheRun) {
  ASSERT_EQ(Weir(Train("a", "--seed 9")).code, 0);
  const Result again = Weir("train --config " + (folder_ / "a/config.ini").string() + " --out " + (folder_ / "b").string());
  ASSERT_EQ(again.code, 0) << again.output;
  EXPECT_EQ(Slurp(folder_ / "a/weights.safetensors"), Slurp(folder_ / "b/weights.safetensors"));
}

TEST_F(Cli, SameBytesWhateverTheThreads_NUM01) {
  ASSERT_EQ(Weir(Train("a", "--threads 1")).code, 0);
  ASSERT_EQ(Weir(Train("b", "--threads 2")).code, 0);
  ASSERT_EQ(Weir(Train("c", "--threads 3")).code, 0);
  const std::string first = Slurp(folder_ / "a/weights.safetensors");
  ASSERT_FALSE(first.empty());
  EXPECT_EQ(first, Slurp(folder_ / "b/weights.safetensors"));
  EXPECT_EQ(first, Slurp(folder_ / "c/weights.safetensors"));
}

TEST_F(Cli, RouterLossesAreTrainedAndTold) {
  ASSERT_EQ(Weir(Train("a")).code, 0);
  const Result balanced = Weir(Train("b", "--balance-loss 0.5 --z-loss 0.01"));
  ASSERT_EQ(balanced.code, 0) << balanced.output;
  EXPECT_NE(Slurp(folder_ / "a/weights.safetensors"), Slurp(folder_ / "b/weights.safetensors"));
  EXPECT_EQ(Slurp(folder_ / "a/metrics.jsonl").find("router_loss"), std::string::npos);
  std::istringstream metrics(Slurp(folder_ / "b/metrics.jsonl"));
  std::string first;
  std::getline(metrics, first);
  const double router = nlohmann::json::parse(first)["router_loss"];
  EXPECT_GT(router, 0.5 * 1.8);  // E * sum F P is about k = 2 where experts are used evenly
  EXPECT_LT(router, 0.5 * 3 + 0.01 * 25);
  EXPECT_NE(Slurp(folder_ / "b/passes.log").find("router_losses"), std::string::npos);
  EXPECT_NE(Slurp(folder_ / "b/config.ini").find("balance-loss = 0.5"), std::string::npos);
  const Result negative = Weir(Train("c", "--balance-loss -1"));
  EXPECT_EQ(negative.code, 2) << negative.output;
  const std::string sigmoid = (kModels / "deepseek_v3/dynamo18_batched_mm_sdpa.onnx").string();
  const Result refused = Weir("plan " + sigmoid + " --sequence 32 --z-loss 0.1");
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.output.find("--z-loss is defined for softmax routers"), std::string::npos) << refused.output;
}

TEST_F(Cli, SameBytesWhateverTheStrip) {
  ASSERT_EQ(Weir(Train("a")).code, 0);
  const Result strips = Weir(Train("b", "--strip 256"));
  ASSERT_EQ(strips.code, 0) << strips.output;
  EXPECT_NE(Slurp(folder_ / "b/plan.json").find("RingDtp"), std::string::npos);
  EXPECT_EQ(Slurp(folder_ / "a/weights.safetensors"), Slurp(folder_ / "b/weights.safetensors"));
  EXPECT_EQ(Weir("plan " + kModel + " --sequence 32 --strip 256").code, 0);
}

TEST_F(Cli, LossFallsAndMetricsHoldEveryStep) {
  const Result result = Weir(Train("a"));
  ASSERT_EQ(result.code, 0) << result.output;
  std::istringstream lines(Slurp(folder_ / "a/metrics.jsonl"));
  std::vector<double> losses;
  for (std::string line; std::getline(lines, line);) {
    const auto step = nlohmann::json::parse(line);
    EXPECT_EQ(step["step"].get<size_t>(), losses.size() + 1);
    losses.push_back(step["loss"].get<double>());
  }
  ASSERT_EQ(losses.size(), 20u);
  EXPECT_LT(losses.back(), losses.front() - 1) << "20 steps on one repeated line";
  EXPECT_NE(Slurp(folder_ / "a/loss.svg").find("<polyline"), std::string::npos);
}

// 64 positions a step hold 8 documents of 8 tokens, whose last position has nothing to predict.
TEST_F(Cli, MetricsCountTheTokensThatAreTrainedOn) {
  std::vector<uint16_t> ids;
  for (uint16_t i = 0; i < 512; ++i) ids.push_back(i % 8 == 7 ? 0 : 1 + i % 5);
  std::ofstream(folder_ / "ids.bin", std::ios::binary).write(reinterpret_cast<const char*>(ids.data()), 1024);
  const Result result = Weir("train " + kModel + " --data " + (folder_ / "ids.bin").string() +
                             " --data-format u16 --document-separator 0 --steps 3 --micro-batch 2 --sequence 32 --out " +
                             (folder_ / "a").string());
  ASSERT_EQ(result.code, 0) << result.output;
  std::istringstream lines(Slurp(folder_ / "a/metrics.jsonl"));
  std::string line;
  for (int64_t step = 1; std::getline(lines, line); ++step)
    EXPECT_EQ(nlohmann::json::parse(line)["tokens"].get<int64_t>(), step * 56) << line;
}

TEST_F(Cli, ADryRunChecksAndWritesNothing) {
  const Result result = Weir(Train("a", "--dry-run --ranks 2 --expert-parallel 2"));
  ASSERT_EQ(result.code, 0) << result.output;
  EXPECT_NE(result.output.find("learning-rate = 0.003\n"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("\narena "), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("in 1 documents, 2 ranks"), std::string::npos) << result.output;
  EXPECT_FALSE(fs::exists(folder_ / "a"));
  EXPECT_EQ(Weir(Train("a", "--dry-run --data /nonexistent")).code, 1);
  EXPECT_EQ(Weir(Train("a", "--dry-run --beta1 2")).code, 2);
  EXPECT_EQ(Weir(Train("a", "--dry-run --expert-parallel 2")).code, 2) << "of one rank";
}

TEST_F(Cli, RefusesAUsedRunFolderAndMissingData) {
  std::ofstream(folder_ / "taken") << "x";
  EXPECT_EQ(Weir(Train("taken")).code, 1);
  fs::create_directories(folder_ / "used");
  std::ofstream(folder_ / "used/file") << "x";
  const Result used = Weir(Train("used"));
  EXPECT_EQ(used.code, 1);
  EXPECT_NE(used.output.find("not empty"), std::string::npos);
  EXPECT_EQ(Weir("train " + kModel + " --data /nonexistent --out " + (folder_ / "x").string()).code, 1);
  EXPECT_FALSE(fs::exists(folder_ / "x")) << "nothing is left behind by a run that never started";
  EXPECT_EQ(Weir("train " + kModel).code, 2);
}

TEST_F(Cli, DataOutsideTheVocabularyIsRefusedBeforeTheFirstStep_DAT01) {
  std::vector<uint16_t> ids(1000, 306);
  ids[777] = 307;
  std::ofstream(folder_ / "ids.bin", std::ios::binary).write(reinterpret_cast<const char*>(ids.data()), 2000);
  const Result result = Weir("train " + kModel + " --data " + (folder_ / "ids.bin").string() + " --data-format u16 --out " + (folder_ / "r").string());
  EXPECT_EQ(result.code, 1);
  EXPECT_NE(result.output.find("token 777 is 307"), std::string::npos) << result.output;
}

TEST_F(Cli, MissingWeightsAreAnErrorUnlessInitialised) {
  // The graph points at weights.safetensors beside it, so a copy alone has no bytes.
  fs::copy(kModels / "mixtral/dynamo18_batched_mm_sdpa.onnx", folder_ / "model.onnx");
  const std::string train = "train " + (folder_ / "model.onnx").string() + " --data " + (folder_ / "data.txt").string() + " --steps 3 --micro-batch 2 --sequence 16 --out ";
  const Result refused = Weir(train + (folder_ / "a").string());
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.output.find("--init"), std::string::npos) << refused.output;
  ASSERT_EQ(Weir(train + (folder_ / "b").string() + " --init normal --seed 3").code, 0);
  ASSERT_EQ(Weir(train + (folder_ / "c").string() + " --init normal --seed 3 --threads 1").code, 0);
  ASSERT_EQ(Weir(train + (folder_ / "d").string() + " --init normal --seed 4").code, 0);
  EXPECT_EQ(Slurp(folder_ / "b/weights.safetensors"), Slurp(folder_ / "c/weights.safetensors"));
  EXPECT_NE(Slurp(folder_ / "b/weights.safetensors"), Slurp(folder_ / "d/weights.safetensors"));
}

TEST_F(Cli, VerifyExitsZeroOnlyWhenAllIsWithinTolerance) {
  const std::string command = "verify " + kModel + " --names " + (kModels / "olmoe/weights.safetensors").string() + " --reference " + (kModels / "olmoe/reference.safetensors").string();
  EXPECT_EQ(Weir(command).code, 0);
  const Result strict = Weir(command + " --logits-tolerance 1e-12");
  EXPECT_EQ(strict.code, 1);
  EXPECT_NE(strict.output.find("FAIL  logits"), std::string::npos) << strict.output;
  const Result both = Weir(command + " --twin --ranks 2 --expert-parallel 2 --json 2>/dev/null");
  EXPECT_EQ(both.code, 0) << both.output;
  EXPECT_NE(both.output.find("to a float64 run"), std::string::npos);
  EXPECT_EQ(Weir(command + " --twin --ranks 4").code, 2) << "2 rows do not go over 4 ranks";
  const std::string rows = "verify " + kModel + " --names " + (kModels / "olmoe/weights.safetensors").string() + " --reference " + (kModels / "olmoe/batch8.safetensors").string();
  EXPECT_EQ(Weir(rows + " --twin --ranks 16 --context-parallel 2 --steps 1").code, 0) << "but 8 rows go over 16, each over two";
  const Result ignored = Weir(command + " --ranks 2 --expert-parallel 2 --strip 64");
  EXPECT_EQ(ignored.code, 2);
  EXPECT_NE(ignored.output.find("do not change: --ranks --expert-parallel --strip; add --twin"), std::string::npos) << ignored.output;
}

TEST_F(Cli, VerifyWithoutAReferenceRunsTwinAndStreamed) {
  const Result all = Weir("verify " + kModel);
  EXPECT_EQ(all.code, 0) << all.output;
  for (const char* knob : {"--strip", "--recompute layer", "--bucket", "--host-budget", "--chunk-tokens"}) {
    EXPECT_NE(all.output.find(knob), std::string::npos) << "everything streams when nothing is said: " << knob << all.output;
  }
  EXPECT_NE(all.output.find("0.00e+00  (limit 0.00e+00, elements whose bits differ)"), std::string::npos) << all.output;
  const Result ranks = Weir("verify " + kModel + " --ranks 2 --context-parallel 2 --vocab-parallel 2 --head-gradient shard --sequence 32 --shard-optimizer");
  EXPECT_EQ(ranks.code, 0) << ranks.output;
  EXPECT_EQ(Weir("verify " + kModel + " --host-budget 1GiB --stash boundaries --recompute layer --recompute-keep attention").code, 0);
  const Result one = Weir("verify " + kModel + " --strip 128 --steps 1");
  EXPECT_EQ(one.code, 0);
  EXPECT_EQ(one.output.find("--recompute"), std::string::npos) << one.output;
  EXPECT_EQ(Weir("verify " + kModel + " --gradient-tolerance 1e-12").code, 1);
  for (const char* flags : {"--batch 0", "--steps 0", "--ranks 0", "--ranks 3 --expert-parallel 2", "--ranks 65", "--chunk-tokens -1", "--ranks 2 --context-parallel 2"}) {
    EXPECT_EQ(Weir("verify " + kModel + " " + flags).code, 2) << flags;
  }
}

TEST_F(Cli, VerifyingNothingIsAnError) {
  const std::string weights = (kModels / "olmoe/weights.safetensors").string();
  const Result result = Weir("verify " + kModel + " --names " + weights + " --reference " + weights);
  EXPECT_EQ(result.code, 1);
  EXPECT_NE(result.output.find("holds nothing to compare"), std::string::npos) << result.output;
}

TEST_F(Cli, NoCommandOverwritesItsInputs) {
  for (const char* file : {"dynamo18_batched_mm_sdpa.onnx", "weights.safetensors"}) {
    fs::copy(kModels / "olmoe" / file, folder_ / file);
  }
  const std::string model = (folder_ / "dynamo18_batched_mm_sdpa.onnx").string();
  const std::string weights = (folder_ / "weights.safetensors").string();
  const std::string model_bytes = Slurp(model), weight_bytes = Slurp(weights);
  for (const std::string& command :
       {"rewrite " + model + " -o " + model, "rewrite " + model + " -o " + (folder_ / "t.onnx").string() + " --log " + model,
        "export " + model + " --names " + weights + " --weights " + weights + " -o " + weights,
        "export " + model + " --names " + weights + " --weights " + weights + " -o " + model}) {
    const Result result = Weir(command);
    EXPECT_EQ(result.code, 1) << command;
    EXPECT_NE(result.output.find("would replace an input"), std::string::npos) << result.output;
  }
  EXPECT_EQ(Slurp(model), model_bytes);
  EXPECT_EQ(Slurp(weights), weight_bytes);
}

TEST_F(Cli, ATrainingGraphIsRecognised) {
  const std::string out = (folder_ / "train.onnx").string();
  ASSERT_EQ(Weir("rewrite " + kModel + " -o " + out).code, 0);
  const Result result = Weir("import " + out);
  EXPECT_EQ(result.code, 1);
  EXPECT_NE(result.output.find("training graph written by weir rewrite"), std::string::npos) << result.output;
}

TEST_F(Cli, CtrlCSavesTheWeightsOfTheLastStep) {
  const std::string out = (folder_ / "a").string();
  const std::string train = Train("a", "--steps 1000000").replace(Train("a").find(" --steps 20"), 11, "");
  // timeout runs the command and sends it SIGINT after a second.
  FILE* pipe = popen(("timeout --signal=INT 1 " WEIR_PROGRAM " " + train + " 2>&1").c_str(), "r");
  std::string output;
  char buffer[4096];
  for (size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.append(buffer, n);
  pclose(pipe);
  EXPECT_NE(output.find("stopped by signal 2"), std::string::npos) << output;
  EXPECT_FALSE(ReadSafetensors(folder_ / "a/weights.safetensors").tensors.empty());
}

TEST_F(Cli, ANonFiniteStepStopsTheRunAndTellsWhy_OPT14) {
  const Result result = Weir("train " + kModel + " --data " + (folder_ / "data.txt").string() + " --out " + (folder_ / "a").string() +
                             " --steps 20 --micro-batch 2 --sequence 32 --learning-rate 1e38");
  EXPECT_EQ(result.code, 1);
  EXPECT_NE(result.output.find("are not finite"), std::string::npos) << result.output;
  EXPECT_FALSE(fs::exists(folder_ / "a/weights.safetensors")) << "weights of NaN are never saved";
}

TEST_F(Cli, ValuesNoRunCouldMeanAreWrongUse) {
  for (const char* flags : {"--threads 1000000", "--threads -1", "--beta1 1", "--epsilon 0", "--max-norm nan", "--init-std nan",
                            "--min-learning-rate 1", "--schedule wsd", "--schedule triangle", "--warmup-steps -1", "--strip -1",
                            "--decay some", "--data-format pdf", "--log-every 0", "--seed -1", "--precision half",
                            "--disable-pass nope", "--print-after nope", "--freeze nothing.*",
                            "--ranks 2 --vocab-parallel 2 --head-gradient shard --grad-accumulation 2"}) {
    EXPECT_EQ(Weir(Train("a", flags)).code, 2) << flags;
  }
  const Result nan = Weir("train " + kModel + " --data " + (folder_ / "data.txt").string() + " --out " + (folder_ / "a").string() + " --learning-rate nan");
  EXPECT_EQ(nan.code, 2);
  EXPECT_NE(nan.output.find("--learning-rate and --min-learning-rate must be finite"), std::string::npos) << nan.output;
  EXPECT_EQ(nan.output.find("must not exceed"), std::string::npos) << nan.output;
  EXPECT_NE(Weir("bench foo").output.find("machine, step"), std::string::npos);
  for (const char* flags : {"--strip -1", "--sequence 0", "--micro-batch -1", "--device-memory much", "--disable-pass nope", "--threads 99999", "--threads -1",
                            "--save-every -1", "--save-every 2 --save-async maybe", "--save-async on", "--save-async off"}) {
    EXPECT_EQ(Weir("plan " + kModel + " " + flags).code, 2) << flags;
  }
  const std::string out = (folder_ / "out.onnx").string();
  for (const char* flags : {"--batch 0 --sequence 8", "--decay some", "--disable-pass nope", "--batch 2", "--inference --strip 100", "--inference --decay all", "--weight-decay nan"}) {
    EXPECT_EQ(Weir("rewrite " + kModel + " -o " + out + " " + flags).code, 2) << flags;
  }
  const Result norm = Weir("rewrite " + kModel + " -o " + out + " --max-norm -1");
  EXPECT_EQ(norm.code, 2);
  EXPECT_NE(norm.output.find("--max-norm must be finite and not negative"), std::string::npos) << norm.output;
  EXPECT_FALSE(fs::exists(out));
  for (const char* key : {"config = other.ini", "help = true"}) {
    std::ofstream(folder_ / "bad.ini") << key << "\n";
    const Result config = Weir(Train("a", "--config " + (folder_ / "bad.ini").string()));
    EXPECT_EQ(config.code, 2) << key;
    EXPECT_NE(config.output.find("belongs on the command line"), std::string::npos) << config.output;
  }
  EXPECT_EQ(Weir("import " + kModel + " --disable-pass nope").code, 2);
  EXPECT_EQ(Weir("bench gemm --size 99999999999999999999").code, 2);
  for (const char* size : {"5x", "5x5x5x", "x5"}) EXPECT_EQ(Weir(std::string("bench gemm --size ") + size).code, 2) << size;
  EXPECT_EQ(Weir("bench dispatch --experts 4 --top-k 8").code, 2);
  EXPECT_FALSE(fs::exists(folder_ / "a"));
}

TEST_F(Cli, KnobsWithoutEffectAreErrors) {
  for (const char* flags : {"--slots 3", "--resident 1MiB", "--recompute-keep attention", "--host-budget 1", "--precision bfloat16", "--host-budget -1",
                            "--host-budget 1XB", "--resident 1XB --bucket 10", "--ranks 1000000"}) {
    EXPECT_EQ(Weir(Train("a", flags)).code, 2) << flags;
  }
  const Result holds_none = Weir("plan " + kModel + " --sequence 32 --host-budget 100");
  EXPECT_EQ(holds_none.code, 2);
  EXPECT_NE(holds_none.output.find("holds no layer boundary"), std::string::npos) << holds_none.output;
  EXPECT_NE(holds_none.output.find("8192 bytes beside 0 exceed the host budget of 100"), std::string::npos) << holds_none.output;
  const Result bfloat16 = Weir("plan " + kModel + " --sequence 32 --precision bfloat16");
  EXPECT_EQ(bfloat16.code, 2);
  EXPECT_NE(bfloat16.output.find("--precision bfloat16 computes with --device cuda only"), std::string::npos) << bfloat16.output;
  EXPECT_FALSE(fs::exists(folder_ / "a"));
}

TEST_F(Cli, BenchHelpListsTheFlagsOfStep) {
  const Result help = Weir("bench --help");
  EXPECT_EQ(help.code, 0);
  for (const char* flag : {"--size", "--grad-accumulation", "--recompute", "--ranks"}) EXPECT_NE(help.output.find(flag), std::string::npos) << flag;
}

TEST_F(Cli, ExportWritesTheTrainedWeightsUnderTheOriginalNames) {
  const std::string names = " --names " + (kModels / "olmoe/weights.safetensors").string();
  ASSERT_EQ(Weir(Train("a", names)).code, 0);
  const auto original = ReadSafetensors(kModels / "olmoe/weights.safetensors");
  const auto trained = ReadSafetensors(folder_ / "a/weights.safetensors");
  for (const auto& [name, tensor] : original.tensors) {
    ASSERT_TRUE(trained.tensors.contains(name)) << name;
    EXPECT_EQ(trained.tensors.at(name)->dims(), tensor->dims()) << name;
  }
  const std::string out = (folder_ / "trained.onnx").string();
  const Result result = Weir("export " + kModel + names + " --weights " + (folder_ / "a/weights.safetensors").string() + " -o " + out);
  ASSERT_EQ(result.code, 0) << result.output;
  // The exported model verifies against itself: its own logits differ from the untrained reference.
  EXPECT_EQ(Weir("verify " + out + " --reference " + (kModels / "olmoe/reference.safetensors").string()).code, 1);
}

TEST_F(Cli, BenchStepPrintsTimeRateAndBytes) {
  const Result result = Weir("bench step " + kModel + " --sequence 32 --micro-batch 2 --steps 2 --json");
  ASSERT_EQ(result.code, 0) << result.output;
  const auto json = nlohmann::json::parse(result.output);
  EXPECT_EQ(json["tokens"], 64);
  EXPECT_NEAR(json["tokens_per_s"].get<double>() * json["seconds"].get<double>(), 64, 1e-9);
  EXPECT_EQ(json["all_seconds"].size(), 2u);
  EXPECT_NEAR(json["loss"].get<double>(), std::log(307.0), 1.5);  // random ids, model near uniform
  EXPECT_GT(json["arena_bytes"].get<int64_t>(), 0);
  EXPECT_EQ(Weir("bench step " + kModel + " --steps 0").code, 2);
  EXPECT_EQ(Weir("bench step").code, 2);
}

// The parts of a run beside its steps; the folder is gone afterwards.
TEST_F(Cli, BenchStepPrintsWhatCheckpointsAndLogsCost) {
  const fs::path out = folder_ / "bench";
  const std::string command = "bench step " + kModel + " --sequence 32 --micro-batch 2 --steps 6 --save-every 2 ";
  for (const char* ranks : {"", "--ranks 2 "}) {
    const Result result = Weir(command + ranks + "--json --out " + out.string());
    ASSERT_EQ(result.code, 0) << result.output;
    const auto json = nlohmann::json::parse(result.output);
    EXPECT_EQ(json["saves"], 3);
    EXPECT_GT(json["saved_bytes"].get<int64_t>(), 12 * 100000) << "parameters, m and v";
    EXPECT_GT(json["save_waited_s"].get<double>(), 0);
    EXPECT_GT(json["save_write_s"].get<double>(), 0);
    EXPECT_NEAR(json["save_share"].get<double>(), json["save_waited_s"].get<double>() / (2 * json["seconds"].get<double>()), 1e-9);
    EXPECT_GT(json["log_s"].get<double>(), 0);
    EXPECT_NEAR(json["log_share"].get<double>(), json["log_s"].get<double>() / json["seconds"].get<double>(), 1e-9);
    EXPECT_GT(json["beside_s"].get<double>(), 0);
    EXPECT_FALSE(fs::exists(out));
  }
  const Result text = Weir(command);
  EXPECT_NE(text.output.find("checkpoints: 3 of "), std::string::npos) << text.output;
  EXPECT_NE(text.output.find("logging: "), std::string::npos) << text.output;
  fs::create_directories(out / "own");
  EXPECT_EQ(Weir(command + "--out " + out.string()).code, 1);
  EXPECT_TRUE(fs::exists(out / "own"));
  EXPECT_EQ(Weir("bench step " + kModel + " --steps 2 --save-every 3").code, 2);
  EXPECT_EQ(Weir("bench step " + kModel + " --steps 2 --out x").code, 2);
}

}  // namespace
}  // namespace weir
