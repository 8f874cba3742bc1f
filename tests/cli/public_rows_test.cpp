// Small checks of rows of public reports that are about whole runs: which samples are read, what is saved, what repeats.
#include <chrono>
#include <iterator>
#include <map>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>
#include <signal.h>

#include "graph/error.h"
#include "optim/checkpoint.h"
#include "tests/cli/commands.h"

namespace weir {
namespace {

using Json = nlohmann::json;

class PublicRows : public Cli {
 protected:
  // A document of so many tokens, none of its stretches like another.
  void WriteTokens(int64_t tokens) const {
    std::ofstream file(folder_ / "tokens.txt");
    for (int64_t i = 0; i < tokens; ++i) file << static_cast<char>('!' + i * i * 7 % 89);
  }
  std::string Command(const std::string& out, const std::string& flags) const {
    return StrCat("train ", kModel, " --data ", (folder_ / "tokens.txt").string(), " --out ", (folder_ / out).string(),
                  " --threads 1 --learning-rate 1e-2 --schedule constant ", flags);
  }
  void Run(const std::string& out, const std::string& flags) const {
    const Result result = Weir(Command(out, flags));
    ASSERT_EQ(result.code, 0) << result.output;
  }
  // Of steps, or of evaluations.
  std::vector<Json> Metrics(const std::string& out, bool evaluations = false) const {
    std::vector<Json> records;
    std::ifstream file(folder_ / out / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const Json json = Json::parse(line);
      if (!json.contains("checkpoint_bytes") && json.contains("eval_loss") == evaluations) records.push_back(json);
    }
    return records;
  }
  fs::path Checkpoint(const std::string& out, int64_t step) const { return folder_ / out / "checkpoints" / CheckpointName(step); }
  Json Index(const std::string& out, int64_t step) const { return Json::parse(Slurp(Checkpoint(out, step) / "checkpoint.json")); }
  std::string Weights(const std::string& out) const { return Slurp(folder_ / out / "weights.safetensors"); }

  // The same samples, their sums grouped otherwise.
  void ExpectSameSamples(const std::string& a, const std::string& b) const {
    const auto first = Metrics(a), second = Metrics(b);
    ASSERT_EQ(first.size(), second.size());
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_EQ(first[i]["tokens"], second[i]["tokens"]) << i;
      EXPECT_NEAR(first[i]["loss"].get<double>(), second[i]["loss"].get<double>(), 1e-4) << i;
    }
  }
};

// DAT-05: steps do not divide the data. The last token of an epoch has no label; all others are trained on, none twice.
TEST_F(PublicRows, RanksReadOnOverTheEndOfAnEpoch) {
  WriteTokens(100);
  Run("four", "--ranks 4 --micro-batch 2 --sequence 8 --steps 3 --save-every 3");
  Run("one", "--ranks 1 --micro-batch 8 --sequence 8 --steps 3");
  const auto steps = Metrics("four");
  ASSERT_EQ(steps.size(), 3u);
  for (const auto& [step, tokens] : {std::pair<size_t, int64_t>{0, 64}, {1, 127}, {2, 191}}) EXPECT_EQ(steps[step]["tokens"], tokens);
  EXPECT_EQ(Index("four", 3)["samples"], 24);
  ExpectSameSamples("four", "one");
  WriteTokens(94);
  Run("two", "--ranks 2 --micro-batch 1 --sequence 5 --steps 10");
  ASSERT_EQ(Metrics("two").size(), 10u);
  EXPECT_EQ(Metrics("two")[8]["tokens"], 90);
  EXPECT_EQ(Metrics("two")[9]["tokens"], 99);
}

// DAT-07: 100 samples over 7 ranks of 3: five steps and five evaluated batches for every rank, and each label counts once.
TEST_F(PublicRows, RanksHaveEquallyManyBatches) {
  WriteTokens(800);
  Run("seven", StrCat("--ranks 7 --micro-batch 3 --sequence 8 --steps 5 --save-every 5 --eval-every 5 --eval-batches 0 --eval-data ",
                      (folder_ / "tokens.txt").string()));
  ASSERT_EQ(Metrics("seven").size(), 5u);
  EXPECT_EQ(Metrics("seven")[4]["tokens"], 839);
  EXPECT_EQ(Index("seven", 5)["samples"], 105);
  const auto evaluations = Metrics("seven", true);
  ASSERT_FALSE(evaluations.empty());
  EXPECT_EQ(evaluations.back()["eval_tokens"], 799);
}

// DAT-08: with accumulation, three steps and three are six.
TEST_F(PublicRows, ResumeReadsTheNextSampleWithAccumulation) {
  WriteTokens(1000);
  const std::string flags = "--micro-batch 2 --grad-accumulation 2 --sequence 16 --save-every 3 ";
  Run("six", flags + "--steps 6");
  Run("parts", flags + "--steps 3");
  EXPECT_EQ(Index("parts", 3)["samples"], 12);
  Run("parts", flags + "--steps 6 --resume auto");
  EXPECT_EQ(Index("parts", 6)["samples"], 24);
  const auto six = Metrics("six"), parts = Metrics("parts");
  ASSERT_EQ(parts.size(), 6u);
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(six[i]["loss"], parts[i]["loss"]) << i;
  EXPECT_EQ(Weights("six"), Weights("parts"));
}

// DAT-10: two ranks, then four: no sample twice, none left out.
TEST_F(PublicRows, ResumeOnMoreRanksReadsTheSameSamples) {
  WriteTokens(1000);
  Run("two", "--ranks 2 --micro-batch 2 --sequence 16 --save-every 3 --steps 6");
  Run("parts", "--ranks 2 --micro-batch 2 --sequence 16 --save-every 3 --steps 3");
  Run("parts", "--ranks 4 --micro-batch 1 --sequence 16 --save-every 3 --steps 6 --resume auto");
  EXPECT_EQ(Index("parts", 6)["samples"], 24);
  ExpectSameSamples("two", "parts");
}

// SAV-02: what a killed run left under the name of the next checkpoint is replaced, and no rank waits for it.
TEST_F(PublicRows, AnUnfinishedCheckpointInTheWayIsReplaced) {
  WriteTokens(1000);
  const std::string flags = "--ranks 2 --micro-batch 1 --sequence 16 --save-every 2 ";
  Run("whole", flags + "--steps 4");
  Run("parts", flags + "--steps 2");
  for (const fs::path& left : {Checkpoint("parts", 4), folder_ / "parts/checkpoints" / (".writing-" + CheckpointName(4))}) {
    fs::create_directories(left);
    std::ofstream(left / "state-00001-of-00002.safetensors") << "half";
  }
  Run("parts", flags + "--steps 4 --resume auto");
  EXPECT_EQ(Index("parts", 4)["step"], 4);
  EXPECT_EQ(Weights("parts"), Weights("whole"));
}

// SAV-04: all that a run goes on with. Random numbers are functions of --seed and places in the data or the model; the
// rate is one of the step and config.ini.
TEST_F(PublicRows, ACheckpointListsAllState) {
  WriteTokens(1000);
  Run("run", "--micro-batch 2 --sequence 16 --save-every 2 --steps 2 --seed 5");
  const Json index = Index("run", 2);
  EXPECT_EQ(index["step"], 2);
  EXPECT_EQ(index["updates"], 2);
  EXPECT_EQ(index["samples"], 4);
  EXPECT_EQ(index["tokens"], 64);
  EXPECT_EQ(index["losses"][0], 2);
  EXPECT_EQ(index["identity"]["--seed"], "5");
  EXPECT_TRUE(index["identity"].contains("hash of --data"));
  std::map<std::string, int> kinds;
  for (const auto& [name, tensor] : index["tensors"].items()) ++kinds[name.substr(0, 2)];
  ASSERT_EQ(kinds.size(), 3u) << "parameters and both moments";
  EXPECT_GT(kinds["w/"], 0);
  EXPECT_EQ(kinds["m/"], kinds["w/"]);
  EXPECT_EQ(kinds["v/"], kinds["w/"]);
  EXPECT_NE(Slurp(Checkpoint("run", 2) / "config.ini").find("learning-rate = "), std::string::npos);
  EXPECT_FALSE(Json::parse(Slurp(Checkpoint("run", 2) / "plan.json")).empty());
}

// SAV-08: the signal reaches rank 1 alone, in an evaluation that takes longer than anyone waits; both end with one code.
TEST_F(PublicRows, ASignalToOneRankEndsAnEvaluation) {
  WriteTokens(1000);
  {
    std::ofstream held(folder_ / "held.txt");
    for (int i = 0; i < 100000; ++i) held << "line " << i << " of another text\n";
  }
  const std::string command = Command("run", StrCat("--ranks 2 --micro-batch 1 --sequence 16 --save-every 1 --steps 40 --eval-batches 1000000 "
                                                    "--eval-every 1 --eval-data ", (folder_ / "held.txt").string()));
  const pid_t run = fork();
  if (run == 0) {
    execl("/bin/sh", "sh", "-c", (std::string("exec " WEIR_PROGRAM " ") + command + " >/dev/null 2>&1").c_str(), nullptr);
    _exit(127);
  }
  for (int i = 0; i < 5000 && !fs::exists(folder_ / "run/plan.json"); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  std::ifstream children(StrCat("/proc/", run, "/task/", run, "/children"));
  const std::vector<pid_t> ranks(std::istream_iterator<pid_t>(children), {});
  const auto start = std::chrono::steady_clock::now();
  kill(ranks.size() == 2 ? ranks[1] : run, ranks.size() == 2 ? SIGTERM : SIGKILL);
  int status = 0;
  waitpid(run, &status, 0);
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 75);
  EXPECT_TRUE(Metrics("run").empty() && Metrics("run", true).empty()) << "it was the first evaluation, before the first step";
}

// NUM-01, NUM-02: two runs, the flag given first and last: every loss to its last digit, every byte of the weights.
TEST_F(PublicRows, RunsRepeatWhereverTheFlagStands) {
  WriteTokens(1000);
  for (const int ranks : {1, 2, 4}) {
    const std::string flags = StrCat("--ranks ", ranks, " --micro-batch 1 --sequence 16 --steps 20"), first = StrCat("first", ranks), last = StrCat("last", ranks);
    Run(first, "--deterministic " + flags);
    Run(last, flags + " --deterministic");
    const auto a = Metrics(first), b = Metrics(last);
    ASSERT_EQ(a.size(), 20u);
    ASSERT_EQ(b.size(), 20u);
    for (size_t i = 0; i < 20; ++i) EXPECT_EQ(a[i]["loss"].dump(), b[i]["loss"].dump()) << ranks << " ranks, step " << i;
    EXPECT_EQ(Weights(first), Weights(last)) << ranks << " ranks";
  }
}

}  // namespace
}  // namespace weir
