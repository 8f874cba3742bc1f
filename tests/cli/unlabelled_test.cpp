// Steps whose tokens have no label, and data that has none to learn.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "graph/error.h"
#include "importer/safetensors.h"
#include "tests/slurp.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

class Unlabelled : public testing::Test {
 protected:
  // "long": documents of 64 tokens whose last four are to be learnt: of four samples of 16 the last has labels. "short": these
  // last samples alone, as documents in the same order.
  void SetUp() override {
    fs::create_directories(folder_);
    std::ofstream whole(folder_ / "long.jsonl"), last(folder_ / "short.jsonl");
    for (int i = 0; i < 50; ++i) {
      std::vector<int> ids;
      for (int t = 0; t < 64; ++t) ids.push_back((i * 31 + t * t * 7 + t) % 256);
      const auto line = [&](int from) {
        return nlohmann::json{{"prompt", std::vector(ids.begin() + from, ids.end() - 4)}, {"completion", std::vector(ids.end() - 4, ids.end())}}.dump() + "\n";
      };
      whole << line(0);
      last << line(48);
    }
  }
  void TearDown() override { fs::remove_all(folder_); }

  int Weir(const std::string& arguments) const {
    return WEXITSTATUS(std::system((WEIR_PROGRAM " " + arguments + " >" + (folder_ / "log").string() + " 2>&1").c_str()));
  }
  int Train(const std::string& out, const std::string& data, const std::string& more) const {
    return Weir("train " WEIR_SOURCE_DIR "/models/olmoe/dynamo18_batched_mm_sdpa.onnx --names " WEIR_SOURCE_DIR
                "/models/olmoe/weights.safetensors --sequence 16 --micro-batch 1 --learning-rate 1e-3 --schedule constant --log-every 1000 --data " +
                (folder_ / data).string() + " --out " + (folder_ / out).string() + " " + more);
  }
  std::string Log() const { return Slurp(folder_ / "log"); }
  std::vector<nlohmann::json> Steps(const std::string& out) const {
    std::vector<nlohmann::json> steps;
    std::ifstream file(folder_ / out / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      if (auto json = nlohmann::json::parse(line); json.contains("loss")) steps.push_back(json);
    }
    return steps;
  }
  std::map<std::string, std::vector<float>> Weights(const fs::path& path) const {
    std::map<std::string, std::vector<float>> weights;
    for (const auto& [name, tensor] : ReadSafetensors(path).tensors) weights[name] = tensor->AsFloats();
    return weights;
  }
  const fs::path folder_ = fs::temp_directory_path() / ("weir_unlabelled_" + std::to_string(getpid()));
};

TEST_F(Unlabelled, StepsChangeNothingAndHaveNoLoss) {
  ASSERT_EQ(Train("run", "long.jsonl", "--steps 3 --warmup-steps 3 --weight-decay 0.5 --balance-loss 0.1"), 0) << Log();
  EXPECT_EQ(Weights(folder_ / "run/weights.safetensors"), Weights(WEIR_SOURCE_DIR "/models/olmoe/weights.safetensors"));
  const auto steps = Steps("run");
  ASSERT_EQ(steps.size(), 3u);
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto& step = steps[i];
    EXPECT_NEAR(step["learning_rate"].get<double>(), 1e-3 * static_cast<double>(i + 1) / 3, 1e-9) << "the schedule goes on: " << step;
    for (const char* key : {"loss", "grad_norm"}) EXPECT_TRUE(step[key].is_null()) << step;
    for (const char* key : {"unlabelled", "skipped"}) EXPECT_EQ(step[key], true) << step;
    EXPECT_EQ(step["tokens"], 0) << step;
  }
  const std::string log = Log(), words = "no position has a label to learn";
  EXPECT_NE(log.find(words), std::string::npos) << log;
  EXPECT_EQ(log.find(words), log.rfind(words)) << "told once: " << log;
  EXPECT_EQ(log.find("loss 0.0000"), std::string::npos) << log;
}

// Moments, decay and bias corrections stay too: four labelled steps among sixteen are those four alone.
TEST_F(Unlabelled, StepsAmongOthersLeaveNoTrace) {
  ASSERT_EQ(Train("among", "long.jsonl", "--steps 8 --save-every 3"), 0) << Log();
  ASSERT_EQ(Train("among", "long.jsonl", "--steps 16 --save-every 3 --resume auto"), 0) << Log();
  ASSERT_EQ(Train("alone", "short.jsonl", "--steps 4"), 0) << Log();
  EXPECT_EQ(Weights(folder_ / "among/weights.safetensors"), Weights(folder_ / "alone/weights.safetensors"));
  const auto among = Steps("among"), alone = Steps("alone");
  ASSERT_EQ(among.size(), 16u);
  for (size_t i = 0; i < among.size(); ++i) {
    EXPECT_EQ(among[i]["step"], i + 1) << "a step of the schedule";
    EXPECT_EQ(among[i]["loss"], i % 4 == 3 ? alone[i / 4]["loss"] : nlohmann::json());
    EXPECT_EQ(among[i].contains("unlabelled"), i % 4 != 3);
  }
  ASSERT_EQ(Weir("report " + (folder_ / "among").string()), 0) << Log();
  const std::string page = Slurp(folder_ / "among/report.html");
  EXPECT_NE(page.find("<td>steps without a label, which changed nothing</td><td>12</td>"), std::string::npos);
  EXPECT_NE(page.find("<td>steps skipped</td><td>0</td>"), std::string::npos);
  EXPECT_EQ(page.find("nan"), std::string::npos);
}

TEST_F(Unlabelled, StepsCountInNoMean) {
  ASSERT_EQ(Train("run", "long.jsonl", "--steps 168 --skip-loss-z 4"), 0) << Log();  // 42 have labels; spikes are known after 32
  for (const auto& step : Steps("run")) EXPECT_EQ(step["spike"], false) << step;
}

// Samples 0 and 1, then 2 and 3: one rank of the second step has labels, and all learn from it. VCE-08
TEST_F(Unlabelled, RanksDoAlike) {
  ASSERT_EQ(Train("run", "long.jsonl", "--steps 4 --ranks 2 --shard-optimizer"), 0) << Log();
  const auto steps = Steps("run");
  ASSERT_EQ(steps.size(), 4u);
  for (size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i]["loss"].is_null(), i % 2 == 0) << steps[i];
  EXPECT_EQ(steps[3]["tokens"], 8);
  EXPECT_NE(Weights(folder_ / "run/weights.safetensors"), Weights(WEIR_SOURCE_DIR "/models/olmoe/weights.safetensors"));
}

TEST_F(Unlabelled, DataWithNothingToLearnIsRefused) {
  for (const char* lines : {R"({"input_ids":[1,2,3,4],"weights":[1,0,0,0]})", R"({"input_ids":[1,2,3],"labels":[1,-100,-100]})", "{\"input_ids\":[1]}\n{\"input_ids\":[2]}",
                            "{\"prompt\":[],\"completion\":[3]}\n{\"prompt\":[],\"completion\":[4]}"}) {
    std::ofstream(folder_ / "none.jsonl") << lines << "\n";
    EXPECT_EQ(Train("run", "none.jsonl", "--steps 2"), 1) << lines;
    EXPECT_NE(Log().find("none is learnt"), std::string::npos) << lines << "\n" << Log();
    EXPECT_FALSE(fs::exists(folder_ / "run")) << "before anything is begun";
    EXPECT_EQ(Train("run", "long.jsonl", "--steps 2 --dry-run --eval-data " + (folder_ / "none.jsonl").string()), 1) << lines;
  }
  std::ofstream(folder_ / "one.jsonl") << "{\"input_ids\":[1]}\n{\"input_ids\":[2, 3],\"labels\":[-100, 3]}\n";
  EXPECT_EQ(Train("run", "one.jsonl", "--steps 2"), 0) << "one token is enough: " << Log();
}

}  // namespace
}  // namespace weir
