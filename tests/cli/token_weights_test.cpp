// Weights of tokens from the command line: files, resumes, ranks, evaluation, verify.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "graph/error.h"
#include "importer/safetensors.h"
#include "tests/slurp.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

class TokenWeights : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_);
    Write("plain", [](int, int) { return std::string(); });
    Write("weighted", [](int i, int t) { return std::to_string(0.25 * ((i + 3 * t) % 8)); });
    Write("masked", [](int i, int t) { return std::string((i + t) % 3 == 0 ? "0" : "1"); });
    Write("ignored", [](int i, int t) { return std::string((i + t) % 3 == 0 ? "-100" : "id"); });
  }
  void TearDown() override { fs::remove_all(folder_); }

  // What stands for token t of document i in "weights", or in "labels" where it is "-100" or "id".
  void Write(const std::string& name, const std::function<std::string(int, int)>& mark) const {
    std::ofstream data(folder_ / (name + ".jsonl"));
    for (int i = 0; i < 60; ++i) {
      std::string ids, weights, labels;
      for (int t = 0; t < 3 + i % 11; ++t) {
        const std::string id = std::to_string((i * 7 + t * 13) % 256), of = mark(i, t), comma = t == 0 ? "" : ", ";
        ids += comma + id;
        weights += comma + of;
        labels += comma + (of == "id" ? id : of);
      }
      data << "{\"input_ids\": [" << ids << "]";
      if (name == "ignored") data << ", \"labels\": [" << labels << "]";
      if (name == "weighted" || name == "masked") data << ", \"weights\": [" << weights << "]";
      data << "}\n";
    }
  }
  std::string Data(const std::string& name) const { return (folder_ / (name + ".jsonl")).string(); }
  int Weir(const std::string& arguments) const {
    return WEXITSTATUS(std::system((WEIR_PROGRAM " " + arguments + " >" + (folder_ / "log").string() + " 2>&1").c_str()));
  }
  std::string Log() const { return Slurp(folder_ / "log"); }
  std::string Train(const std::string& out, const std::string& data, const std::string& more) const {
    return "train " WEIR_SOURCE_DIR "/models/mixtral/dynamo18_batched_mm_sdpa.onnx --sequence 32 --micro-batch 2 --learning-rate 1e-2 --schedule constant --data " +
           Data(data) + " --out " + (folder_ / out).string() + " " + more;
  }
  std::string Weights(const std::string& out) const { return Slurp(folder_ / out / "weights.safetensors"); }
  // Of steps, or of evaluations.
  std::vector<nlohmann::json> Metrics(const std::string& out, const std::string& key) const {
    std::vector<nlohmann::json> lines;
    std::ifstream file(folder_ / out / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      if (auto json = nlohmann::json::parse(line); json.contains(key)) lines.push_back(json);
    }
    return lines;
  }
  const fs::path folder_ = fs::temp_directory_path() / ("weir_weights_" + std::to_string(getpid()));
};

TEST_F(TokenWeights, MasksAreIgnoredLabelsAndNothingIsTakenUnasked) {
  ASSERT_EQ(Weir(Train("masked", "masked", "--steps 3 --eval-data " + Data("masked"))), 0) << Log();
  EXPECT_NE(Log().find("tokens have weights: losses are sum(weight * loss) / sum(weight)"), std::string::npos) << Log();
  ASSERT_EQ(Weir(Train("ignored", "ignored", "--steps 3 --eval-data " + Data("ignored"))), 0) << Log();
  EXPECT_EQ(Log().find("tokens have weights"), std::string::npos);
  ASSERT_EQ(Weir(Train("idle", "plain", "--steps 1 --token-weights")), 0) << Log();
  EXPECT_EQ(Log().find("tokens have weights"), std::string::npos) << Log();
  EXPECT_NE(Log().find("--token-weights changes nothing here"), std::string::npos) << Log();
  EXPECT_EQ(Weights("masked"), Weights("ignored"));
  const auto masked = Metrics("masked", "loss"), ignored = Metrics("ignored", "loss");
  ASSERT_EQ(masked.size(), 3u);
  for (size_t i = 0; i < masked.size(); ++i) {
    EXPECT_EQ(masked[i]["loss"], ignored[i]["loss"]);
    EXPECT_EQ(masked[i]["tokens"], ignored[i]["tokens"]) << "those that are learnt";
    EXPECT_FALSE(ignored[i].contains("label_weight"));
  }
  EXPECT_EQ(masked[0]["label_weight"], masked[0]["tokens"]);
  EXPECT_EQ(Metrics("masked", "eval_loss")[1]["eval_loss"], Metrics("ignored", "eval_loss")[1]["eval_loss"]);
  EXPECT_NE(Slurp(folder_ / "masked/plan.json").find("token_weights"), std::string::npos);
  EXPECT_EQ(Slurp(folder_ / "ignored/plan.json").find("token_weights"), std::string::npos);
}

TEST_F(TokenWeights, RunsResumeAndStreamWithTheSameBytes) {
  const std::string eval = " --eval-data " + Data("weighted") + " --eval-every 2";
  ASSERT_EQ(Weir(Train("whole", "weighted", "--steps 4" + eval)), 0) << Log();
  ASSERT_EQ(Weir(Train("plain", "plain", "--steps 4")), 0) << Log();
  EXPECT_NE(Weights("whole"), Weights("plain"));
  for (const char* steps : {"2", "4"}) ASSERT_EQ(Weir(Train("parts", "weighted", std::string("--save-every 2 --resume auto --steps ") + steps + eval)), 0) << Log();
  EXPECT_EQ(Weights("parts"), Weights("whole"));
  ASSERT_EQ(Weir(Train("streamed", "weighted", "--steps 4 --strip 64 --recompute layer --host-budget 1GiB" + eval)), 0) << Log();
  EXPECT_EQ(Weights("streamed"), Weights("whole"));
  EXPECT_EQ(Weir(Train("parts", "masked", "--save-every 2 --resume auto --steps 6")), 1) << "other weights are other data";
  EXPECT_NE(Log().find("--data"), std::string::npos) << Log();
}

// The same samples on one rank, on two that share sequences and the head, and as micro-batches: one mean over all weights.
TEST_F(TokenWeights, TheMeanIsOverAllRanksAndMicroBatches) {
  for (const char* pack : {"", " --pack isolate"}) {
    ASSERT_EQ(Weir(Train("one", "weighted", std::string("--steps 2 --grad-accumulation 2") + pack)), 0) << Log();
    const auto one = Metrics("one", "loss");
    int run = 0;
    for (const char* ranks : {"--ranks 2", "--ranks 2 --grad-accumulation 2 --context-parallel 2 --vocab-parallel 2 --vocab-leaf 64",
                              "--ranks 4 --context-parallel 2 --vocab-parallel 4 --vocab-leaf 64 --head-gradient shard --move activations"}) {
      const std::string out = "ranks" + std::to_string(run++);
      ASSERT_EQ(Weir(Train(out, "weighted", StrCat("--steps 2 ", ranks, pack))), 0) << Log();
      const auto many = Metrics(out, "loss");
      for (size_t i = 0; i < one.size(); ++i) {
        EXPECT_EQ(many[i]["label_weight"], one[i]["label_weight"]) << ranks;
        EXPECT_EQ(many[i]["tokens"], one[i]["tokens"]) << ranks;
        EXPECT_NEAR(many[i]["loss"].get<double>(), one[i]["loss"].get<double>(), 2e-6) << ranks;
        EXPECT_NEAR(many[i]["grad_norm"].get<double>(), one[i]["grad_norm"].get<double>(), 2e-5) << ranks;
      }
      fs::remove_all(folder_ / out);
    }
    fs::remove_all(folder_ / "one");
  }
}

// Some files weigh their tokens: those of the others weigh 1, in a mixture and where only the held-out data has weights.
TEST_F(TokenWeights, MixturesAndHeldOutData) {
  ASSERT_EQ(Weir("train " WEIR_SOURCE_DIR "/models/mixtral/dynamo18_batched_mm_sdpa.onnx --sequence 32 --micro-batch 2 --steps 2 --data " + Data("weighted") +
                 ":1 --data " + Data("plain") + ":1 --out " + (folder_ / "mixed").string()), 0) << Log();
  const auto mixed = Metrics("mixed", "loss");
  EXPECT_GT(mixed[0]["label_weight"].get<double>(), 0);
  ASSERT_EQ(Weir("train " WEIR_SOURCE_DIR "/models/mixtral/dynamo18_batched_mm_sdpa.onnx --steps 2 --data " + Data("weighted") + " --data " + Data("plain") +
                 " --out " + (folder_ / "files").string()), 1);
  EXPECT_NE(Log().find("plain.jsonl' does not weigh its tokens"), std::string::npos) << Log();
  ASSERT_EQ(Weir(Train("learnt", "plain", "--steps 2")), 0) << Log();
  ASSERT_EQ(Weir(Train("evaluated", "plain", "--steps 2 --eval-data " + Data("weighted"))), 0) << Log();
  EXPECT_EQ(Weights("evaluated"), Weights("learnt"));
  ASSERT_EQ(Weir(Train("dry", "weighted", "--dry-run")), 0) << Log();
  EXPECT_FALSE(fs::exists(folder_ / "dry"));
}

TEST_F(TokenWeights, TwinsAndFloat64AgreeAndAReferenceMayHaveThem) {
  EXPECT_EQ(Weir("verify " WEIR_SOURCE_DIR "/models/olmoe/dynamo18_batched_mm_sdpa.onnx --sequence 24 --token-weights --balance-loss 0.1 --recompute layer --strip 64"), 0) << Log();
  EXPECT_EQ(Weir("verify " WEIR_SOURCE_DIR "/models/olmoe/dynamo18_batched_mm_sdpa.onnx --sequence 24 --ranks 2 --vocab-parallel 2 --vocab-leaf 64 --token-weights"), 0) << Log();
  EXPECT_EQ(Weir("verify " WEIR_SOURCE_DIR "/models/gpt_oss/hf18_batched_mm_eager.onnx --names " WEIR_SOURCE_DIR "/models/gpt_oss/weights.safetensors --twin --strip 64 --reference "
                 WEIR_SOURCE_DIR "/models/gpt_oss/weighted.safetensors"), 0) << Log();
  // Equal weights: the stored loss and gradients. Weight on the first row alone: another loss.
  const Safetensors file = ReadSafetensors(WEIR_SOURCE_DIR "/models/olmoe/reference.safetensors");
  for (const bool equal : {true, false}) {
    std::vector<float> weights(2 * 17, 0.3f);
    if (!equal) std::fill(weights.begin() + 17, weights.end(), 0.0f);
    auto tensors = file.tensors;
    tensors["weights"] = TensorData::FromFloats({2, 17}, weights);
    WriteSafetensors(folder_ / "reference.safetensors", tensors, file.metadata);
    EXPECT_EQ(Weir("verify " WEIR_SOURCE_DIR "/models/olmoe/dynamo18_batched_mm_sdpa.onnx --names " WEIR_SOURCE_DIR "/models/olmoe/weights.safetensors --twin --reference " +
                   (folder_ / "reference.safetensors").string()), equal ? 0 : 1) << Log();
    EXPECT_EQ(Log().find("FAIL  loss") == std::string::npos, equal) << Log();
  }
}

}  // namespace
}  // namespace weir
