// The command line as a user meets it: the weir program itself, its exit codes, messages and files.
#include "tests/cli/commands.h"

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "graph/error.h"
#include "importer/safetensors.h"

namespace weir {
namespace {

TEST_F(Cli, HelpVersionAndUnknownCommand) {
  EXPECT_EQ(Weir("--help").code, 0);
  EXPECT_EQ(Weir("--version").code, 0);
  const Result typo = Weir("trian");
  EXPECT_EQ(typo.code, 2);
  EXPECT_NE(typo.output.find("did you mean 'train'"), std::string::npos) << typo.output;
  EXPECT_EQ(Weir("train --help").code, 0);
}

TEST_F(Cli, AFullStandardOutputIsAFailure) {
  for (const std::string& command : std::initializer_list<std::string>{
           "import " + kModel, "import " + kModel + " --json", "plan " + kModel + " --sequence 32", "--help", "train --help"}) {
    const Result result = Weir(command + " 2>&1 > /dev/full");
    EXPECT_EQ(result.code, 1) << command;
    EXPECT_NE(result.output.find("cannot write to standard output"), std::string::npos) << result.output;
  }
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
  const Result ranks = Weir("verify " + kModel + " --ranks 2 --context-parallel 2 --vocab-parallel 2 --head-gradient shard --sequence 32 --shard-parameters all");
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

// By itself it is done in seconds on a CPU, not in minutes and 17 GB.
TEST_F(Cli, TheOptimizersBenchIsSmallOnACpu) {
  const Result bench = Weir("bench optimizer --repeats 1 --json");
  EXPECT_EQ(bench.code, 0) << bench.output;
  EXPECT_NE(bench.output.find("\"parameters\":16777216,"), std::string::npos) << bench.output;
  EXPECT_EQ(Weir("bench optimizer --repeats 1 --parameters -1").code, 2);
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

TEST_F(Cli, BenchAloneSaysWhatThereIsToTime) {
  const Result result = Weir("bench");
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.output.find("say what to time: gemm, rows"), std::string::npos) << result.output;
}

// What the run itself is refused for.
TEST_F(Cli, DryRunRefusesAFolderInUseAndIdsOutsideTheVocabulary) {
  fs::create_directories(folder_ / "mine/own");
  const Result used = Weir(Train("mine", "--dry-run"));
  EXPECT_EQ(used.code, 1);
  EXPECT_NE(used.output.find("is not empty"), std::string::npos) << used.output;
  for (const char* id : {"400", "-5"}) {
    const Result result = Weir(Train("a", StrCat("--dry-run --document-separator ", id)));
    EXPECT_EQ(result.code, 2);
    EXPECT_NE(result.output.find(StrCat("--document-separator=", id, " is no id of the vocabulary, 0..306")), std::string::npos) << result.output;
  }
  EXPECT_EQ(Weir(Train("a", "--dry-run --document-separator 10")).code, 0);
  EXPECT_FALSE(fs::exists(folder_ / "a"));
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
    EXPECT_LT(json["save_late_s"].get<double>(), json["save_waited_s"].get<double>()) << "a copy takes time too";
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
