// Weights and gradients spread over ranks, whole for a layer at a time: the twin's bits, PyTorch's gradients, two layers' bytes.
#include <gtest/gtest.h>

#include "backend/arena_layout.h"
#include "backend/kernel.h"
#include "graph/error.h"
#include "graph/op_schema.h"
#include "tests/end_to_end/rank_launch.h"

namespace weir {
namespace {

struct Degrees {
  int64_t world, expert_parallel, context_parallel;
};
void PrintTo(const Degrees& d, std::ostream* out) { *out << "W" << d.world << "_Ep" << d.expert_parallel << "_C" << d.context_parallel; }

class ShardedParameters : public testing::TestWithParam<Degrees> {};

TEST_P(ShardedParameters, HaveTheTwinsBitsAfterThreeSteps) {
  for (const char* family : {"mixtral", "gpt_oss", "deepseek_v3"}) {
    Launch launch{.family = family, .world = GetParam().world, .expert_parallel = GetParam().expert_parallel,
                  .context_parallel = GetParam().context_parallel};
    const Outcome twin = RunLaunch(launch);
    const auto run = [&](const char* what, std::function<void(TrainingOptions&)> knobs) {
      launch.knobs = [=](TrainingOptions& o) {
        o.shard_parameters = what;
        knobs(o);
      };
      return RunLaunch(launch);
    };
    const auto compare = [&](const char* what, const char* with, std::function<void(TrainingOptions&)> knobs) {
      ExpectSame(run(what, std::move(knobs)), twin, StrCat(family, " ", what, " ", with));
    };
    compare("weights", "alone", [](TrainingOptions&) {});
    compare("all", "alone", [](TrainingOptions&) {});
    compare("all", "sums beside, recompute, strip", [](TrainingOptions& o) { o.reduce_beside = true, o.recompute = "layer", o.strip = 64; });
    compare("all", "bucket", [](TrainingOptions& o) { o.offload = {.bucket = 1000, .slots = 2, .resident = 5000}; });
    launch.steps = 1;
    ExpectReference(run("all", [](TrainingOptions&) {}), family);
  }
}

INSTANTIATE_TEST_SUITE_P(Degrees, ShardedParameters, testing::Values(Degrees{2, 1, 1}, Degrees{4, 2, 1}, Degrees{4, 1, 4}, Degrees{8, 4, 2}),
                         [](const auto& info) { return testing::PrintToString(info.param); });

// Weights that are rounded as bfloat16 rounds them, their masters whole or in two halves.
TEST(ShardedParametersInBFloat16, HaveTheBitsOfWholeOnes) {
  for (const bool split : {false, true}) {
    const auto run = [&](const char* what) {
      return RunLaunch({.world = 4, .expert_parallel = 2,
                        .knobs = [=](TrainingOptions& o) { o.precision = "bfloat16-weights", o.shard_parameters = what; },
                        .disabled = split ? std::set<std::string>{} : std::set<std::string>{"split_master"}});
    };
    const Outcome whole = run("none");
    for (const char* what : {"weights", "all"}) ExpectSame(run(what), whole, what);
  }
}

TEST(ShardedParametersOfMicroBatches, KeepGradientsWhole) {
  const auto run = [](const char* what) {
    return RunLaunch({.world = 2, .micro_batches = 2, .knobs = [=](TrainingOptions& o) { o.shard_parameters = what; }});
  };
  ExpectSame(run("weights"), run("none"), "two micro-batches");
  try {
    run("all");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("--shard-parameters=all"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("--grad-accumulation 1"), std::string::npos) << error.what();
  }
}

struct Planned {
  std::unique_ptr<Graph> graph;
  Plan plan;
};
Planned PlanOf(const std::string& family, int64_t world, const std::string& what, const std::string& recompute, const std::string& precision = "float32") {
  TrainingOptions options;
  options.layout.world = world;
  options.shard_parameters = what;
  options.recompute = recompute;
  options.precision = precision;
  options.strip = 64;
  Planned planned{.graph = Clone(*Stored(family).graph), .plan = {}};
  PassManager passes;
  BuildTrainingGraph(*planned.graph, options, passes);
  SpecializeShapes(*planned.graph, 1, 8);
  planned.plan = MakePlan(*planned.graph, precision == "bfloat16" ? DeviceKind::kCuda : DeviceKind::kCpu);
  return planned;
}

// Bytes of the matrices before the layers, of each layer and behind them, whole; `spared`: what rank 0 has no row of.
std::vector<int64_t> SectionBytes(const Graph& canonical, int64_t world, int64_t& spared) {
  std::map<int, int64_t> bytes;
  int layers = 0;
  for (const Value* parameter : canonical.ValuesWithRole(Role::kParameter)) {
    const size_t at = parameter->name.find("layers.");
    const int layer = at == std::string::npos ? 0 : std::stoi(parameter->name.substr(at + 7)) + 1;
    layers = std::max(layers, layer);
    const Dims dims = ToDims(parameter->shape);
    if (dims.size() < 2 || dims[0] < world) continue;
    spared += NumElements(dims) / dims[0] * (dims[0] - DivCeil(dims[0], world)) * 4;
    const bool head = layer == 0 && parameter->name.find("embed") == std::string::npos;
    bytes[head ? 1000 : layer] += Aligned(NumElements(dims) * 4);
  }
  std::vector<int64_t> sections;
  for (const auto& [section, sum] : bytes) sections.push_back(sum);
  return sections;
}

int64_t MostLive(const Plan& plan, const std::string& term) {
  int64_t most = 0;
  for (int step = 0; step < std::ssize(plan.steps); ++step) {
    int64_t live = 0;
    for (const PlannedBuffer& b : plan.buffers) {
      if (b.term == term && !b.persistent && b.first_step <= step && step <= b.last_step) live += Aligned(b.bytes);
    }
    most = std::max(most, live);
  }
  return most;
}

TEST(ShardedParametersPlan, HoldsTwoLayersWhole) {
  for (const char* family : {"mixtral", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v3"}) {
    for (const char* recompute : {"none", "layer"}) {
      SCOPED_TRACE(StrCat(family, " ", recompute));
      int64_t two = 0, spared = 0;
      const std::vector<int64_t> sections = SectionBytes(*Stored(family).graph, 2, spared);
      ASSERT_GE(sections.size(), 4u);
      for (size_t s = 1; s < sections.size(); ++s) two = std::max(two, sections[s] + sections[s - 1]);
      const Planned weights = PlanOf(family, 2, "weights", recompute), both = PlanOf(family, 2, "all", recompute);
      for (const Plan* plan : {&weights.plan, &both.plan}) {
        EXPECT_LE(MostLive(*plan, "gathered"), two);
        EXPECT_GT(MostLive(*plan, "gathered"), two / 4);
      }
      EXPECT_EQ(MostLive(weights.plan, "grads"), 0);
      EXPECT_GT(MostLive(both.plan, "grads"), two / 4);
      EXPECT_LE(MostLive(both.plan, "grads"), two);
      // What stays: own rows of weights, moments and, with `all`, gradients; vectors and what has no row for each rank whole.
      int64_t persistent[] = {0, 0, 0};
      const Planned none = PlanOf(family, 2, "none", recompute);
      const Plan* plans[] = {&none.plan, &weights.plan, &both.plan};
      for (size_t i = 0; i < 3; ++i) {
        for (const PlannedBuffer& b : plans[i]->buffers) persistent[i] += b.persistent && (b.term == "weights" || b.term == "optimizer" || b.term == "grads") ? b.bytes : 0;
      }
      EXPECT_EQ(persistent[0] - persistent[1], 3 * spared);
      EXPECT_EQ(persistent[1] - persistent[2], spared);
    }
  }
}

// Every gather and sum is joined, once; a gather stands a section ahead of its join, so that something lies between.
TEST(ShardedParametersPlan, JoinsWhatItBegins) {
  if (FindKernel(DeviceKind::kCuda, GetOp("AdamW", "ai.weir")) == nullptr) GTEST_SKIP() << "built without CUDA";
  const Planned planned = PlanOf("mixtral", 4, "all", "layer", "bfloat16");
  std::map<int64_t, std::pair<int, int>> places;  // by event
  int place = 0, sums = 0, apart = 0;
  for (const auto& node : planned.graph->nodes()) {
    ++place;
    const int64_t event = node->attributes.Int("event", -1);
    if (event < 0) continue;
    sums += node->op() == "ReduceRows" ? 1 : 0;
    int& at = node->op() == "JoinBeside" ? places[event].second : places[event].first;
    EXPECT_EQ(at, 0) << node->op() << " " << node->source;
    at = place;
  }
  for (const auto& [event, at] : places) {
    EXPECT_GT(at.first, 0) << event;
    EXPECT_GT(at.second, at.first) << event;
    apart += at.second - at.first > 3 ? 1 : 0;
  }
  EXPECT_GT(sums, 10);
  EXPECT_GT(apart, std::ssize(places) * 3 / 4);
}

TEST(ShardedParametersPlan, SaysWhatIsWrong) {
  try {
    PlanOf("mixtral", 2, "gradients", "none");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("use none, weights or all"), std::string::npos) << error.what();
  }
  EXPECT_THROW(PlanOf("mixtral", 1, "weights", "none"), Error);
}

}  // namespace
}  // namespace weir
