// weir plan: verdicts, advice, the knobs it chooses, the longest sequence, the closed form, estimates, the picture.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <boost/property_tree/xml_parser.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "backend/arena_layout.h"
#include "cli/closed_form.h"
#include "cli/plan_advice.h"
#include "cli/step_cost.h"
#include "graph/error.h"
#include "graph/text.h"
#include "importer/importer.h"
#include "tests/built_with_cuda.h"

namespace weir {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
const std::string kModel = WEIR_SOURCE_DIR "/models/olmoe/dynamo18_batched_mm_sdpa.onnx";

struct Result {
  int code;
  std::string output;
};

// Standard output alone.
Result Weir(const std::string& arguments, const char* errors = "/dev/null") {
  FILE* pipe = popen((WEIR_PROGRAM " " + arguments + " 2>" + errors).c_str(), "r");
  std::string output;
  char buffer[4096];
  for (size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.append(buffer, n);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
}

Json PlanOf(const std::string& flags, int code = 0) {
  const Result result = Weir("plan " + kModel + " --json " + flags);
  EXPECT_EQ(result.code, code) << flags;
  return Json::parse(result.output);
}

int64_t ArenaOf(const std::string& flags) { return PlanOf(flags)["arena_bytes"]; }

// The base's micro-batch, unless the flags lower it.
std::string WithBatch(const std::string& flags) { return flags.find("--micro-batch") == flags.npos ? flags + " --micro-batch 4" : flags; }

std::unique_ptr<Graph> Canonical() {
  PassManager passes;
  auto graph = ReadOnnx(kModel);
  Canonicalize(*graph, {}, passes);
  return graph;
}

class Plans : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("weir_plan_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()) + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string File(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }
  fs::path folder_;
};

// Every figure of the advice is that of a plan with those flags; the command line that is told fits.
TEST_F(Plans, AdviceOverBudgetIsExact) {
  const int64_t needed = ArenaOf("--sequence 512 --micro-batch 4"), budget = needed * 3 / 5;
  const std::string flags = "--sequence 512 --micro-batch 4 --device-memory " + std::to_string(budget);
  const Json plan = PlanOf(flags, 3);
  EXPECT_FALSE(plan["budget"]["fits"]);
  ASSERT_GE(plan["advice"].size(), 4u);
  for (const Json& advice : plan["advice"]) {
    const std::string run = WithBatch("--sequence 512 " + advice["flags"].get<std::string>());
    EXPECT_EQ(needed - ArenaOf(run), advice["device_saved"]) << run;
    EXPECT_GT(advice["device_saved"], 0);
  }
  ASSERT_TRUE(plan["auto"]["fits"]);
  const std::string line = plan["auto"]["command_line"], train = "weir train ";
  ASSERT_TRUE(line.starts_with(train)) << line;
  const size_t accumulation = line.find(" --grad-accumulation");
  EXPECT_EQ(PlanOf(line.substr(line.find(" --")).substr(0, accumulation == line.npos ? line.npos : accumulation - line.find(" --")) + " --device-memory " + std::to_string(budget))["budget"]["fits"], true) << line;
}

TEST_F(Plans, NothingFitsIsSaidPlainly) {
  const Result result = Weir("plan " + kModel + " --sequence 512 --device-memory 64KiB", "/dev/stdout");
  EXPECT_EQ(result.code, 3);
  EXPECT_NE(result.output.find("no choice of these knobs fits"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("the step needs"), std::string::npos) << result.output;
  EXPECT_EQ(result.output.find("weir train"), std::string::npos) << result.output;
}

TEST_F(Plans, AutoChoosesTheFastestThatFits) {
  const std::string base = "--sequence 512 --micro-batch 4";
  const int64_t needed = ArenaOf(base);
  const Json roomy = PlanOf(base + " --auto --device-memory " + std::to_string(2 * needed));
  EXPECT_EQ(roomy["auto"]["flags"].get<std::string>().find("--recompute"), std::string::npos) << "with room for all, no knob that costs time";
  const Json tight = PlanOf(base + " --auto --device-memory " + std::to_string(needed / 2));
  ASSERT_TRUE(tight["auto"]["fits"]);
  const int64_t chosen = tight["auto"]["device_bytes"];
  EXPECT_LE(chosen, needed / 2);
  EXPECT_EQ(ArenaOf(WithBatch("--sequence 512 " + tight["auto"]["flags"].get<std::string>())), chosen);
  for (const Json& tried : tight["auto"]["tried"]) {
    if (!tried["fits"]) continue;
    EXPECT_GE(tried["seconds"].get<double>() * 1.002, tight["auto"]["seconds"].get<double>()) << tried;
  }
}

// Between ranks every lever is there, and what a flag alone saves is what a plan with it has.
TEST_F(Plans, EveryLeverIsTried) {
  const std::string base = "--sequence 512 --micro-batch 4 --ranks 4 --recompute layer --recompute-keep attention --bucket 1000";
  const int64_t needed = ArenaOf(base);
  const Json plan = PlanOf(base + " --device-memory " + std::to_string(needed - 1), 3);
  std::string all;
  for (const Json& advice : plan["advice"]) {
    EXPECT_EQ(needed - ArenaOf(WithBatch(StrCat("--sequence 512 --ranks 4 --recompute layer --recompute-keep attention --bucket 1000 ", advice["flags"].get<std::string>()))),
              advice["device_saved"]) << advice;
  }
  for (const Json& tried : plan["auto"]["tried"]) all += tried["flags"].get<std::string>() + "\n";
  for (const char* lever : {"--strip 8192", "--recompute-keep none", "--stash boundaries", "--host-budget", "--chunk-tokens", "--expert-parallel 4", "--context-parallel 2",
                            "--vocab-parallel 4", "--head-gradient shard", "--move activations", "--shard-optimizer", "--shard-parameters weights", "--shard-parameters all", "--slots 1", "--micro-batch 1"}) {
    EXPECT_NE(all.find(lever), std::string::npos) << lever << " in\n" << all;
  }
}

// All levers at once overfill the host: what host memory holds is used, the rest stays.
TEST_F(Plans, AutoFitsTheHostToo) {
  const std::string base = "--sequence 512 --micro-batch 4 --auto --device-memory ";
  const Json roomy = PlanOf(base + "3MiB");
  ASSERT_TRUE(roomy["auto"]["fits"]);
  const int64_t host = roomy["auto"]["host_bytes"];
  ASSERT_GT(host, 0);
  const Json tight = PlanOf(base + "4MiB --host-memory " + std::to_string(host * 9 / 10));
  ASSERT_TRUE(tight["auto"]["fits"]);
  EXPECT_LE(tight["auto"]["host_bytes"].get<int64_t>(), host * 9 / 10);
}

// At the length found the printed command line fits, and none of many other choices goes further.
TEST_F(Plans, TheLongestOverAllChoices) {
  const std::string budget = " --ranks 2 --device-memory 12MiB";
  const Json found = PlanOf("--auto --max-tokens --token-step 256" + budget);
  const int64_t longest = found["max_tokens"]["sequence"];
  EXPECT_GT(longest, 0);
  EXPECT_EQ(longest % 256, 0);
  const std::string line = found["auto"]["command_line"];
  EXPECT_NE(line.find(StrCat("--sequence ", longest)), std::string::npos) << line;
  EXPECT_EQ(line.find("--grad-accumulation"), std::string::npos) << "one sequence of that length: " << line;
  EXPECT_TRUE(PlanOf(line.substr(line.find(" --ranks")) + " --device-memory 12MiB")["budget"]["fits"]) << line;
  for (const char* knobs : {"", "--strip 64 --recompute layer", "--strip 64 --recompute layer --bucket 1000 --slots 1 --host-budget 1GiB",
                            "--strip 64 --recompute layer --bucket 1000 --host-budget 1GiB --context-parallel 2 --expert-parallel 2 --vocab-parallel 2 --shard-optimizer"}) {
    const Json one = PlanOf(StrCat(knobs, " --max-tokens --token-step 256", budget));
    EXPECT_LE(one["max_tokens"]["sequence"].get<int64_t>(), longest) << knobs;
  }
  EXPECT_EQ(PlanOf("--auto --max-tokens --device-memory 4KiB", 3)["max_tokens"]["sequence"], 0);
}

TEST_F(Plans, TheLongestSequenceIsTheLongest) {
  for (const std::string knobs : {"--micro-batch 2", "--recompute layer --strip 256 --bucket 1000"}) {
    const int64_t budget = ArenaOf(knobs + " --sequence 700");
    const Json found = PlanOf(knobs + " --sequence 64 --max-tokens --token-step 64 --device-memory " + std::to_string(budget))["max_tokens"];
    const int64_t longest = found["sequence"];
    EXPECT_EQ(longest, 640) << "700 fits exactly, so 640 does and 704 does not";
    EXPECT_EQ(ArenaOf(knobs + " --sequence 640"), found["device_bytes"]);
    EXPECT_GT(ArenaOf(knobs + " --sequence 704"), budget);
  }
  EXPECT_EQ(PlanOf("--sequence 64 --max-tokens --device-memory 4KiB", 3)["max_tokens"]["sequence"], 0);
  EXPECT_EQ(PlanOf("--sequence 4096 --max-tokens --token-step 32 --device-memory " + std::to_string(ArenaOf("--sequence 64")))["max_tokens"]["sequence"], 64)
      << "the verdict is that of the length found";
}

// olmoe of models/: H 64, V 307, k 2, 2 layers; N = 2 x 40 tokens of float32.
TEST_F(Plans, TheClosedFormIsThePapers) {
  const Json plan = PlanOf("--sequence 40 --micro-batch 2 --ranks 4 --expert-parallel 2 --chunk-tokens 20 --bucket 1000 --slots 3 --host-budget 1GiB --recompute layer");
  const Json imported = Json::parse(Weir("import " + kModel + " --json").output);
  const int64_t theta = imported["parameters"];
  std::map<std::string, int64_t> terms;
  for (const Json& term : plan["paper"]["device"]) terms[term["term"]] = term["bytes"];
  const std::map<std::string, int64_t> expected = {{"weights", theta * 2 / 4}, {"grads", theta * 2 / 4},
                                                   {"staging", 16 * 3 * 1000}, {"attention", 4 * 80 * 64 * 4},
                                                   {"dispatch", 2 * 2 * 2 * 20 * 64 * 4}, {"strips", 4 * 80 * 307 * 4},
                                                   {"boundaries", 2 * 80 * 64 * 4}};
  EXPECT_EQ(terms, expected);
  EXPECT_EQ(plan["paper"]["host"][0]["bytes"], 2 * 80 * 64 * 4);  // both layers' inputs
  EXPECT_EQ(plan["paper"]["host"].size(), 1);
  const Json kept = PlanOf("--sequence 40 --micro-batch 2 --host-budget 1GiB --recompute layer --recompute-keep attention");
  EXPECT_EQ(kept["paper"]["host"][0]["bytes"], 2 * 80 * 64 * 4);
  EXPECT_EQ(kept["paper"]["host"][1]["bytes"], 2 * 80 * (64 * 4 + 4 * 4)) << "both layers' outputs and log-sum-exps of 4 heads";
  EXPECT_EQ(kept["host_ledger"]["attention"], kept["paper"]["host"][1]["bytes"]);
  if (!BuiltWithCuda()) GTEST_SKIP() << "built without CUDA";
  const Json narrow = PlanOf("--sequence 40 --micro-batch 2 --device cuda --precision bfloat16 --host-budget 1GiB --recompute layer --recompute-keep attention");
  EXPECT_EQ(narrow["host_ledger"]["attention"], 2 * 80 * (64 * 2 + 4 * 4)) << "log-sum-exps stay float32";
}

// Products take what their flop take or their bytes, whichever is more; rows their bytes.
TEST_F(Plans, EstimatesAreFlopAndBytesOverRates) {
  const auto graph = ParseText("graph (float[100,50] x) => (float[100,20] y)\nparameter float[20,50] w\n{ h = Linear(x, w) y = Neg(h) }");
  const Plan plan = MakePlan(*graph, DeviceKind::kCpu);
  MachineRates rates;
  rates.gemm_flops = 1000, rates.memory_bandwidth = 1e9;
  const double product = 2.0 * 100 * 50 * 20, row = 4.0 * 2 * 100 * 20;
  const StepCost bound_by_flop = EstimateStep(plan, rates);
  EXPECT_DOUBLE_EQ(bound_by_flop.micro_batch.at("products"), product / 1000);
  EXPECT_DOUBLE_EQ(bound_by_flop.micro_batch.at("rows"), row / 1e9);
  EXPECT_DOUBLE_EQ(bound_by_flop.Total(3), 3 * (product / 1000 + row / 1e9));
  rates.gemm_flops = 1e15, rates.memory_bandwidth = 10;
  EXPECT_DOUBLE_EQ(EstimateStep(plan, rates).micro_batch.at("products"), 4.0 * (100 * 50 + 20 * 50 + 100 * 20) / 10);
}

// What one knob costs, by hand: streamed moments 8 bytes a parameter each way, recomputation the layers' products again.
TEST_F(Plans, KnobsCostWhatTheyMove) {
  const auto graph = Canonical();
  PlanKnobs knobs{.micro_batch = 1, .sequence = 64, .dispatch = {}, .training = {}};
  PlanSearch search(*graph, DeviceKind::kCpu, knobs, {}, {}, {});
  const Candidate base = search.Try(knobs);
  int64_t parameters = 0;
  for (const Value* parameter : graph->ValuesWithRole(Role::kParameter)) parameters += NumElements(ToDims(parameter->shape));
  PlanKnobs moments = knobs;
  moments.training.offload.bucket = 1000;
  EXPECT_EQ(search.Try(moments).cost.host_bytes - base.cost.host_bytes, 8.0 * static_cast<double>(parameters));
  PlanKnobs boundaries = knobs;
  boundaries.training.host_budget = int64_t{1} << 40;
  EXPECT_EQ(search.Try(boundaries).cost.host_bytes - base.cost.host_bytes, 2.0 * 64 * 64 * 4);
  PlanKnobs attention = boundaries;
  attention.training.recompute = "layer", attention.training.keep = "attention";
  EXPECT_EQ(search.Try(attention).cost.host_bytes - base.cost.host_bytes, 2.0 * 64 * (64 * 4 + 64 * 4 + 4 * 4));
  attention.training.stash = "boundaries";
  EXPECT_EQ(search.Try(attention).cost.host_bytes - base.cost.host_bytes, 2.0 * 64 * 64 * 4);
  PlanKnobs ranks = knobs;
  ranks.training.layout.world = ranks.dispatch.expert_parallel = 2;
  const double one_way = 64.0 * 2 * 64 * 4 / 2;  // N k H b (E_p-1)/E_p
  EXPECT_GE(search.Try(ranks).cost.link_bytes, 2 * 5 * one_way);  // two layers; forward 2 trips, backward 3
  PlanKnobs halves = knobs;
  halves.sequence = 32;
  const Candidate& half = search.Try(halves);
  EXPECT_EQ(half.micro_batches, 2) << "for the same tokens";
  double once = 0, twice = 0;
  for (const auto& [term, seconds] : half.cost.update) once += seconds;
  for (const auto& [term, seconds] : half.cost.micro_batch) twice += seconds;
  EXPECT_DOUBLE_EQ(half.seconds, 2 * twice + once);
  PlanKnobs parts = knobs;
  parts.training.layout.world = parts.dispatch.context_parallel = 2;
  const Candidate& part = search.Try(parts);
  EXPECT_EQ(part.micro_batches, 2) << "two ranks hold one sequence";
  const double heads = 64.0 / 2 * 64 * 4 / 2;  // a rank's half sequence, all heads' channels, half of it away
  EXPECT_GE(part.cost.link_bytes, 2 * 2 * 4 * heads) << "two layers; q, k, v there and y back, and their gradients";
}

// Eight ranks, two for each of four heads: a rank receives its rows of q and the whole keys and values of its head.
TEST_F(Plans, RanksThatShareHeadsReceiveWholeKeys) {
  const auto graph = Canonical();
  PlanKnobs knobs{.micro_batch = 1, .sequence = 64, .dispatch = {}, .training = {}};
  knobs.training.layout.world = knobs.dispatch.context_parallel = 8;
  PlanSearch search(*graph, DeviceKind::kCpu, knobs, {}, {}, {});
  const Candidate& shared = search.Try(knobs);
  EXPECT_EQ(shared.refused, "");
  PlanKnobs alone = knobs;  // the sums of gradients alone
  alone.dispatch.context_parallel = 1;
  const double rows = 8 * 64 * 4, keys = 64 * 16 * 4, away = 7.0 / 8;
  EXPECT_DOUBLE_EQ(shared.cost.link_bytes - search.Try(alone).cost.link_bytes, 2 * 2 * (2 * rows + 2 * keys) * away)
      << "two layers; q, k, v there and y back, and their gradients";
  PlanKnobs odd = knobs;
  odd.sequence = 72;
  EXPECT_NE(search.Try(odd).refused.find("use a multiple of 16: 64 or 80"), std::string::npos) << search.Try(odd).refused;
  const Json longest = PlanOf("--ranks 8 --context-parallel 8 --max-tokens --token-step 24 --device-memory 8MiB")["max_tokens"];
  EXPECT_EQ(longest["sequence"].get<int64_t>() % 48, 0) << "parts are halved";
  EXPECT_GT(longest["sequence"].get<int64_t>(), 0);
}

// Where four ranks do not reach, eight do, though there are four heads.
TEST_F(Plans, AutoTakesMoreRanksThanHeads) {
  const Json chosen = PlanOf("--ranks 8 --sequence 65536 --device-memory 44MiB --host-memory 1GiB --auto");
  EXPECT_NE(chosen["auto"]["flags"].get<std::string>().find("--context-parallel 8"), std::string::npos) << chosen["auto"]["flags"];
}

// 2 x 4096^3 flop of one product: cuBLAS on tensor cores, or own kernels without them.
TEST_F(Plans, EstimatesTellPrecisionsApart) {
  const auto graph = ParseText("graph (float[4096,4096] x) => (float[4096,4096] y)\nparameter float[4096,4096] w\n{ y = Linear(x, w) }");
  const Plan plan = MakePlan(*graph, DeviceKind::kCpu);
  EXPECT_DOUBLE_EQ(EstimateStep(plan, Float32Rates()).micro_batch.at("products"), 2.0 * 4096 * 4096 * 4096 / 22e12);
  EXPECT_DOUBLE_EQ(EstimateStep(plan, MachineRates{}).micro_batch.at("products"), 2.0 * 4096 * 4096 * 4096 / 600e12);
  if (!BuiltWithCuda()) GTEST_SKIP() << "built without CUDA";
  for (const std::string type : {"float32", "bfloat16"})
    EXPECT_EQ(PlanOf("--sequence 64 --device cuda --precision " + type)["estimate"]["machine"], "an H200 in " + type);
}

TEST_F(Plans, MachineFilesAreChecked) {
  EXPECT_EQ(ReadMachine(File("a.json", R"({"gemm_flops": 1e12, "link": 5e9})")).gemm_flops, 1e12);
  EXPECT_EQ(ReadMachine(File("b.json", "{}")).h2d, MachineRates{}.h2d);
  EXPECT_EQ(ReadMachine(File("b.json", "{}"), Float32Rates()).gemm_flops, Float32Rates().gemm_flops);
  for (const char* text : {R"({"gemm": 1})", R"({"link": 0})", R"({"link": "fast"})", "[]", "{"}) EXPECT_THROW(ReadMachine(File("c.json", text)), Error) << text;
  EXPECT_EQ(Weir("plan " + kModel + " --sequence 32 --machine " + File("d.json", R"({"speed": 1})")).code, 2);
  EXPECT_EQ(Weir("plan " + kModel + " --sequence 32 --machine " + (folder_ / "none.json").string()).code, 1);
}

TEST_F(Plans, ThePictureIsOneWellFormedPage) {
  const fs::path page = folder_ / "plan.html";
  const Result result = Weir("plan " + kModel + " --sequence 16384 --strip 256 --recompute layer --bucket 1000 --device-memory 1GiB --html " + page.string());
  ASSERT_EQ(result.code, 0) << result.output;
  std::ifstream in(page);
  std::string text((std::istreambuf_iterator<char>(in)), {});
  ASSERT_TRUE(text.starts_with("<!DOCTYPE html>"));
  std::istringstream xml(text.substr(text.find('\n')));
  boost::property_tree::ptree tree;
  ASSERT_NO_THROW(boost::property_tree::read_xml(xml, tree));
  int panels = 0;
  for (const auto& [name, child] : tree.get_child("html.body")) panels += name == "svg";
  EXPECT_EQ(panels, 4);  // as given; without each of three
  EXPECT_NE(text.find("without --bucket"), std::string::npos);
  EXPECT_NE(text.find("class=\"budget\""), std::string::npos);
  for (size_t at = text.find("http"); at != text.npos; at = text.find("http", at + 1)) EXPECT_TRUE(text.substr(at).starts_with("http://www.w3.org/")) << "no network";
}

TEST_F(Plans, ThePictureOfAutoIsOfWhatWasChosen) {
  const fs::path page = folder_ / "plan.html";
  ASSERT_EQ(Weir("plan " + kModel + " --sequence 16384 --device-memory 64MiB --auto --html " + page.string()).code, 0);
  std::ifstream in(page);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  EXPECT_NE(text.find("as chosen by --auto, --sequence 16384 --strip 8192 --recompute layer"), std::string::npos);
  EXPECT_NE(text.find(">without --strip<"), std::string::npos);
  EXPECT_EQ(text.find("as given"), std::string::npos);
}

// 8 experts over 3 ranks go 3, 3, 2, and the plan is that of the fullest rank; dense parameters are whole on every rank.
// Rows per rank do not shrink with the ranks that share the experts. MEM-04, MEM-05
TEST_F(Plans, ExpertsAreDealtAndRowsAreNot) {
  const auto weights = [](const Json& plan) {
    int64_t bytes = 0;
    for (const Json& buffer : plan["buffers"]) bytes += buffer["term"] == "weights" ? buffer["bytes"].get<int64_t>() : 0;
    return bytes;
  };
  const Json whole = PlanOf("--sequence 64 --ranks 3"), dealt = PlanOf("--sequence 64 --ranks 3 --expert-parallel 3");
  const int64_t experts = 2 * 8 * (2 * 12 * 64 + 64 * 12) * 4;  // 2 layers, 8 experts of width 12
  EXPECT_EQ(weights(whole) - weights(dealt), experts / 8 * 5);
  EXPECT_GE(dealt["ledger"]["dispatch"].get<int64_t>(), 2 * 64 * 2 * 64 * 4) << "N k H b there and back";
}

TEST_F(Plans, NoTwoTermsOfThePictureLookAlike) {
  const fs::path page = folder_ / "plan.html";
  ASSERT_EQ(Weir("plan " + kModel + " --sequence 64 --html " + page.string()).code, 0);
  std::ifstream in(page);
  const std::string text((std::istreambuf_iterator<char>(in)), {}), key = "height=\"12\" fill=\"#";
  std::vector<std::array<int, 3>> colours;
  for (size_t at = text.find(key); at != text.npos; at = text.find(key, at + 1)) {
    const int rgb = std::stoi(text.substr(at + key.size(), 6), nullptr, 16);
    colours.push_back({rgb >> 16, rgb >> 8 & 255, rgb & 255});
  }
  ASSERT_EQ(colours.size(), LedgerTerms().size());
  for (size_t i = 0; i < colours.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      EXPECT_GT(std::hypot(colours[i][0] - colours[j][0], colours[i][1] - colours[j][1], colours[i][2] - colours[j][2]), 40) << LedgerTerms()[i] << " and " << LedgerTerms()[j];
    }
  }
}

// Layers' inputs are all that the host budget can take where nothing is kept: one line of advice, not two that are alike.
TEST_F(Plans, NoAdviceComesTwice) {
  for (const char* knobs : {"", "--recompute layer", "--recompute layer --recompute-keep attention", "--ranks 2 --strip 64"}) {
    const Json plan = PlanOf(StrCat("--sequence 512 --device-memory 1KiB ", knobs), 3);
    std::multiset<std::string> flags;
    for (const Json& advice : plan["advice"]) flags.insert(advice["flags"]);
    EXPECT_GT(flags.size(), 2u) << knobs;
    for (const std::string& flag : flags) EXPECT_EQ(flags.count(flag), 1u) << flag << " beyond " << knobs;
  }
}

// What is asked first comes first; a search that takes its time comes after it.
TEST_F(Plans, ThePlanIsShownBeforeTheSearch) {
  const std::string text = Weir("plan " + kModel + " --sequence 512 --device-memory 1KiB", "&1").output;
  ASSERT_NE(text.find("tried "), std::string::npos) << text;
  EXPECT_TRUE(text.find("estimated step") < text.find("tried ") && text.find("tried ") < text.find("one knob alone")) << text;
}

TEST_F(Plans, FlagsThatChangeNothingAreTold) {
  for (const std::string flag : {"--token-step 100", "--reduce-beside"}) {
    const Result idle = Weir("plan " + kModel + " --sequence 32 " + flag, "&1");
    EXPECT_EQ(idle.code, 0);
    EXPECT_NE(idle.output.find("notice: " + flag.substr(0, flag.find(' ')) + " changes nothing here"), std::string::npos) << idle.output;
  }
  EXPECT_EQ(Weir("plan " + kModel + " --sequence 32 --token-step 32 --max-tokens --device-memory 1MiB", "&1").output.find("changes nothing"), std::string::npos);
}

TEST_F(Plans, WrongUse) {
  for (const char* flags : {"--sequence 2000000000000", "--micro-batch 2000000000000", "--ranks 0", "--ranks -1", "--max-tokens", "--auto", "--token-step 0 --device-memory 1GiB --max-tokens", "--device-memory -1", "--device-memory 1XB", "--grad-accumulation 0", "--ranks 2 --reduce-beside --grad-accumulation 2",
                            "--ranks 2 --shard-parameters all --grad-accumulation 2", "--vocab-parallel 2 --ranks 2 --head-gradient shard --grad-accumulation 2", "--host-memory -1", "--host-budget -1", "--host-budget 1XB", "--resident 3QB --bucket 10", "--device gpu"})
    EXPECT_EQ(Weir(StrCat("plan ", kModel, std::string(flags).starts_with("--sequence") ? " " : " --sequence 32 ", flags)).code, 2) << flags;
}

}  // namespace
}  // namespace weir
