// The command line that weir plan prints: a shell reads it, it is of the plan that is shown, and it has what was given.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/options.h"
#include "cli/sizes.h"
#include "graph/error.h"
#include "tests/built_with_cuda.h"

namespace weir {
namespace {

using Json = nlohmann::json;
const std::string kModels = WEIR_SOURCE_DIR "/models", kTrain = "weir train ";

struct Result {
  int code;
  std::string output;  // standard output alone
};

Result Shell(const std::string& command) {
  FILE* pipe = popen((command + " 2>/dev/null").c_str(), "r");
  std::string output;
  char buffer[4096];
  for (size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.append(buffer, n);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
}

struct Case {
  std::string model, given;   // flags of the model, loss, layout and memory
  std::string batch, budget;  // that a choice of knobs may cut up; that it must hold
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.model << " " << one.given << " " << one.batch << " " << one.budget; }

const std::string kQwen = "/qwen3_moe/dynamo18_batched_mm_sdpa.onnx", kOlmoe = "/olmoe/dynamo18_batched_mm_sdpa.onnx", kMixtral = "/mixtral/dynamo18_batched_mm_sdpa.onnx";

const std::vector<Case> kCases = {
    {kQwen, StrCat("--names ", kModels, "/qwen3_moe/weights.safetensors --freeze '*experts*' --freeze '*embed*' --freeze 'lm_head*'"), "--sequence 256", "--device-memory 2300KiB"},
    {kQwen, "--freeze '*embed*' --threads 1", "--sequence 512", "--device-memory 30MiB --host-memory 10MiB"},
    {kQwen, "--ranks 4 --expert-parallel 2 --lambda 2.123456789012 --strip 64", "--sequence 512 --micro-batch 4", "--device-memory 20MiB"},
    {kQwen, "--ranks 2 --precision bfloat16 --device cuda --deterministic --balance-loss 0.01 --z-loss 0.001", "--sequence 1024", "--device-memory 1840MiB"},
    {kOlmoe, "--ranks 2 --expert-parallel 2 --alpha 1.5 --min-rows 16 --max-foreign 1 --chunk-tokens 100 --max-chunks 3", "--sequence 512 --micro-batch 3", "--device-memory 6MiB"},
    {kOlmoe, "--pack isolate --token-weights --leaves 32 --unit-rows 1024", "--sequence 512 --micro-batch 2 --grad-accumulation 3", "--device-memory 5MiB"},
    {kOlmoe, "--recompute layer --bucket 1000 --slots 2 --resident 4096", "--sequence 512", "--device-memory 3MiB --host-memory 64MiB"},
    {kOlmoe, "--host-budget 200KiB --stash boundaries --recompute layer --recompute-keep attention", "--sequence 512", "--device-memory 3MiB"},
    {kOlmoe, "--ranks 4 --vocab-parallel 2 --move auto --vocab-leaf 64 --reduce-beside --save-every 5 --save-async off", "--sequence 512", "--device-memory 8MiB"},
    {kOlmoe, "--ranks 4 --context-parallel 2 --shard-optimizer", "--sequence 512 --micro-batch 4", "--device-memory 6MiB --host-memory 64MiB"},
    {kOlmoe, "--ranks 2 --recompute none --expert-parallel 1 --strip 0", "--sequence 512 --micro-batch 4", "--device-memory 12MiB"},
    {kMixtral, "--disable-pass merge_common", "--sequence 2048", "--device-memory 64MiB --host-memory 64MiB"},
    {kMixtral, "--ranks 2 --strip 128", "", "--token-step 128 --max-tokens --device-memory 16MiB"},
};

// MEM-10: beside the arena, in which workspaces and gaps are counted, a budget holds CUDA's context and, of several ranks, their links.
TEST(PlanBudget, HoldsWhatLiesBesideTheArena_MEM10) {
  if (!BuiltWithCuda()) GTEST_SKIP() << "built without CUDA";
  for (const auto& [ranks, beside] : {std::pair<int, int64_t>{1, 512}, {2, 1792}}) {
    const auto plan = [&, ranks = ranks](int64_t bytes) {
      return Shell(StrCat(WEIR_PROGRAM " plan ", kModels, kQwen, " --device cuda --precision bfloat16 --sequence 64 --json --ranks ", ranks, " --device-memory ", bytes));
    };
    const Json planned = Json::parse(plan(int64_t{1} << 40).output);
    const int64_t arena = planned["arena_bytes"];
    int64_t lines = 0;
    for (const auto& [term, bytes] : planned["ledger"].items()) lines += bytes.get<int64_t>();
    EXPECT_EQ(lines, arena) << "the lines are the whole";
    EXPECT_TRUE(planned["ledger"].contains("fixed") && planned["ledger"].contains("fragmentation")) << planned["ledger"];
    EXPECT_EQ(planned["budget"]["beside_arena"], beside << 20);
    EXPECT_EQ(plan(arena + (beside << 20)).code, 0) << ranks;
    EXPECT_EQ(plan(arena + (beside << 20) - 1).code, 3) << ranks;
  }
}

class PlanLines : public testing::TestWithParam<Case> {};

// Copied into a shell, `weir plan` of the line plans every buffer as shown, in the budget; `weir train` takes it; no given flag is otherwise.
TEST_P(PlanLines, ThatOfAutoIsThePlanShown) {
  const auto& [model, given, batch, budget] = GetParam();
  if (given.find("--device cuda") != given.npos && !BuiltWithCuda()) GTEST_SKIP() << "built without CUDA";
  const Result automatic = Shell(StrCat(WEIR_PROGRAM " plan ", kModels, model, " ", given, " ", batch, " ", budget, " --auto --json"));
  ASSERT_EQ(automatic.code, 0);
  const Json shown = Json::parse(automatic.output);
  const std::string line = shown["auto"]["command_line"];
  ASSERT_TRUE(line.starts_with(kTrain)) << line;
  const std::string budgets = budget.substr(budget.find("--device-memory"));
  const Result copied = Shell(StrCat(WEIR_PROGRAM " plan ", line.substr(kTrain.size()), " ", budgets, " --json"));
  ASSERT_EQ(copied.code, 0) << line;
  const Json planned = Json::parse(copied.output);
  for (const char* key : {"arena_bytes", "host_arena_bytes", "ledger", "host_ledger", "buffers", "steps", "paper", "estimate"}) EXPECT_EQ(planned[key], shown[key]) << key << " of " << line;
  EXPECT_EQ(shown["auto"]["device_bytes"], planned["arena_bytes"]);
  EXPECT_EQ(shown["auto"]["host_bytes"], planned["host_arena_bytes"]);
  const Result trained = Shell(StrCat(WEIR_PROGRAM " ", line.substr(5), " --data " WEIR_SOURCE_DIR "/docs --data-format text --out ", testing::TempDir(), "weir_plan_line_none --dry-run"));
  EXPECT_EQ(trained.code, 0) << line;
  EXPECT_NE(trained.output.find(StrCat("\narena ", FormatBytes(shown["arena_bytes"].get<int64_t>()), " for ")), std::string::npos) << line << "\n" << trained.output;
  std::istringstream words(given);
  std::string flag, value;
  for (std::string word; words >> word;) {  // "--flag value" or "--flag"
    flag = word.starts_with("--") ? word : flag;
    value = word.starts_with("--") ? flag : word == "200KiB" ? StrCat(flag, " ", 200 << 10) : StrCat(flag, " ", word);
    EXPECT_NE((line + " ").find(StrCat(" ", value, " ")), std::string::npos) << value << " in " << line;
  }
  const Json& changed = shown["auto"]["not_as_given"];
  for (const Json& text : changed) EXPECT_TRUE(text.get<std::string>().starts_with("--micro-batch ") || text.get<std::string>().starts_with("--sequence ")) << text;
}

INSTANTIATE_TEST_SUITE_P(OfFlags, PlanLines, testing::ValuesIn(kCases), [](const auto& info) { return StrCat("Case", info.index); });

// The same of the line that is printed where the flags as given are over the budget, which may change them but says so.
TEST(PlanLine, OverBudgetItSaysWhatItChanges) {
  const std::string given = kModels + kQwen + " --ranks 4 --expert-parallel 2 --recompute layer --recompute-keep attention --freeze '*embed*' --sequence 512 --micro-batch 4", budget = " --device-memory 8MiB";
  const Result over = Shell(StrCat(WEIR_PROGRAM " plan ", given, budget, " --json"));
  ASSERT_EQ(over.code, 3);
  const Json json = Json::parse(over.output);
  const std::string line = json["auto"]["command_line"];
  EXPECT_NE(line.find(" --freeze '*embed*'"), std::string::npos) << line;
  const Result copied = Shell(StrCat(WEIR_PROGRAM " plan ", line.substr(kTrain.size()), budget, " --json"));
  ASSERT_EQ(copied.code, 0) << line;
  EXPECT_EQ(Json::parse(copied.output)["arena_bytes"], json["auto"]["device_bytes"]);
  std::string changed;
  for (const Json& text : json["auto"]["not_as_given"]) changed += text.get<std::string>() + "\n";
  for (const char* flag : {"--micro-batch 4", "--expert-parallel 2"}) {
    EXPECT_EQ((line + " ").find(StrCat(" ", flag, " ")) == std::string::npos, changed.find(StrCat(flag, " to ")) != std::string::npos) << flag << " in " << line << "\n" << changed;
  }
  const std::string text = Shell(StrCat(WEIR_PROGRAM " plan ", given, budget)).output;
  EXPECT_NE(text.find("not as given: --micro-batch 4 to "), std::string::npos) << text;
}

// A flag that leaves no room is named.
TEST(PlanLine, WhatIsKeptIsNamed) {
  const std::string plan = StrCat(WEIR_PROGRAM " plan ", kModels, kOlmoe, " --sequence 512 --recompute none --auto --device-memory ");
  const Result none = Shell(plan + "1MiB");
  EXPECT_EQ(none.code, 3);
  EXPECT_NE(none.output.find("kept as given: --recompute; without them there is more to choose from\nno choice of these knobs fits"), std::string::npos) << none.output;
  const Result fits = Shell(plan + "64MiB");
  EXPECT_NE(fits.output.find("\nkept as given: --recompute\n"), std::string::npos) << fits.output;
  EXPECT_EQ(fits.output.find("not as given"), std::string::npos) << fits.output;
}

// The report is of what was chosen.
TEST(PlanLine, TheReportIsOfTheChoice) {
  const std::string text = Shell(StrCat(WEIR_PROGRAM " plan ", kModels, kOlmoe, " --ranks 2 --sequence 512 --micro-batch 4 --auto --device-memory 5MiB")).output;
  const size_t fits = text.find("fits with ");
  ASSERT_NE(fits, std::string::npos) << text;
  const std::string bytes = text.substr(fits + 10, text.find(" device", fits) - fits - 10);
  EXPECT_TRUE(text.starts_with(StrCat("arena ", bytes, " for "))) << bytes << " in " << text.substr(0, 200);
}

TEST(PlanLine, WordsAreAShellsWords) {
  for (const std::string word : {"plain-1.5/a_b:c=d,e", "*embed*", "two words", "it's", "", "$HOME", "a\\b", "#x", "~", "[ab]", "\"q\"", "a;b", "!x"}) {
    EXPECT_EQ(Shell("printf %s " + ShellWord(word)).output, word);
  }
  EXPECT_EQ(ShellWord("plain-1.5/a_b:c=d,e"), "plain-1.5/a_b:c=d,e");
}

}  // namespace
}  // namespace weir
