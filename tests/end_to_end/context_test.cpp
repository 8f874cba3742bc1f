// Sequences spread over ranks: PyTorch's loss and gradients whatever the degrees, and bits that no knob changes.
#include <gtest/gtest.h>

#include "graph/error.h"
#include "optim/twin.h"
#include "tests/end_to_end/rank_launch.h"

namespace weir {
namespace {

struct Degrees {
  int64_t world, context_parallel, expert_parallel;
};
void PrintTo(const Degrees& d, std::ostream* out) { *out << "W" << d.world << "_C" << d.context_parallel << "_Ep" << d.expert_parallel; }
std::string Name(const testing::TestParamInfo<Degrees>& info) { return testing::PrintToString(info.param); }

Launch LaunchOf(const std::string& family, const Degrees& degrees) {
  return {.family = family,
          .world = degrees.world,
          .expert_parallel = degrees.expert_parallel,
          .context_parallel = degrees.context_parallel};
}

class ContextTruth : public testing::TestWithParam<Degrees> {};

// Grouped kv heads, replicated at C = 4 (mixtral, qwen3_moe, gpt_oss); q and k norms (qwen3_moe, olmoe); sinks and a
// sliding window that crosses parts (gpt_oss); rotation of some channels (deepseek_v3).
TEST_P(ContextTruth, LossAndGradientsAreThoseOfPyTorch) {
  for (const char* family : {"mixtral", "gpt_oss", "olmoe", "qwen3_moe", "deepseek_v3"}) {
    Launch launch = LaunchOf(family, GetParam());
    launch.steps = 1;
    ExpectReference(RunLaunch(launch), family);
  }
}

INSTANTIATE_TEST_SUITE_P(Degrees, ContextTruth,
                         testing::Values(Degrees{2, 2, 1}, Degrees{4, 2, 1}, Degrees{4, 4, 1}, Degrees{2, 2, 2}, Degrees{4, 2, 4},
                                         Degrees{4, 4, 2}, Degrees{8, 4, 2}),
                         Name);

// More ranks than heads (4, of 2 or 4 kv heads), and as many as do not divide them: 12 = 4 * 3 ranks, three with the same head,
// 6 = 2 * 3, 3 = 1 * 3.
INSTANTIATE_TEST_SUITE_P(SharedHeads, ContextTruth, testing::Values(Degrees{3, 3, 1}, Degrees{6, 6, 2}, Degrees{6, 3, 3}, Degrees{12, 12, 1}), Name);

class ContextBits : public testing::TestWithParam<Degrees> {};

TEST_P(ContextBits, NoKnobChangesABitAfterThreeSteps) {
  for (const char* family : {"mixtral", "gpt_oss"}) {
    const Launch plain = LaunchOf(family, GetParam());
    const Outcome twin = RunLaunch(plain);
    ExpectSame(RunLaunch(plain), twin, StrCat(family, " again"));
    const auto compare = [&](const char* what, std::function<void(TrainingOptions&)> knobs) {
      Launch launch = plain;
      launch.knobs = std::move(knobs);
      ExpectSame(RunLaunch(launch), twin, StrCat(family, " ", what));
    };
    compare("strip", [](TrainingOptions& o) { o.strip = 64; });
    compare("recompute", [](TrainingOptions& o) { o.recompute = "layer"; });
    compare("recompute, attention kept", [](TrainingOptions& o) { o.recompute = "layer", o.keep = "attention"; });
    compare("host budget", [](TrainingOptions& o) { o.recompute = "layer", o.host_budget = int64_t{1} << 30; });
    compare("attention kept on the host", [](TrainingOptions& o) { o.recompute = "layer", o.keep = "attention", o.host_budget = int64_t{1} << 30; });
    compare("bucket", [](TrainingOptions& o) { o.offload = {.bucket = 1000, .slots = 2, .resident = 5000}; });
    compare("chunks", [](TrainingOptions& o) { o.stream_dispatch = StreamDispatchOptions{.chunk_tokens = 7}; });
  }
}

INSTANTIATE_TEST_SUITE_P(Degrees, ContextBits, testing::Values(Degrees{2, 2, 1}, Degrees{4, 2, 2}), Name);
INSTANTIATE_TEST_SUITE_P(SharedHeads, ContextBits, testing::Values(Degrees{3, 3, 1}, Degrees{6, 6, 2}), Name);

// Two ranks a head, 48 tokens: streamed, recomputed and offloaded against the twin, bit by bit, and against float64.
TEST(Context, EightRanksShareFourHeads) {
  for (const char* family : {"mixtral", "gpt_oss", "deepseek_v3"}) {
    TwinOptions options;
    options.batch = 1;
    options.sequence = 48;
    options.streamed.layout = {.world = 8, .expert_parallel = 2, .vocabulary_parallel = 2, .context_parallel = 8};
    options.streamed.strip = 64;
    options.streamed.recompute = "layer";
    options.streamed.keep = "attention";
    options.streamed.host_budget = int64_t{1} << 30;
    options.streamed.offload = {.bucket = 500, .slots = 2};
    options.streamed.stream_dispatch = StreamDispatchOptions{.chunk_tokens = 3};
    for (const Comparison& c : CompareTwin(*Stored(family).graph, options)) {
      EXPECT_TRUE(c.ok()) << family << ": " << c.tensor << " " << c.measure << " " << c.difference;
    }
  }
}

// With attention's outputs kept, backward exchanges q, k, v again but runs no Attention twice.
TEST(Context, KeptAttentionIsExchangedNotComputedAgain) {
  for (const char* keep : {"none", "attention"}) {
    TrainingOptions options;
    options.layout = {.world = 2, .context_parallel = 2};
    options.recompute = "layer";
    options.keep = keep;
    const auto graph = Clone(*Stored("mixtral").graph);
    PassManager passes;
    BuildTrainingGraph(*graph, options, passes);
    int attentions = 0, kept = 0;
    for (const auto& node : graph->nodes()) {
      if (node->op() == "Attention") ++attentions;
      if (node->op() == "HeadsToSequence" && node->phase == Phase::kForward) {
        for (const Use& use : node->out()->uses) kept += use.node->phase == Phase::kBackward && use.node->op() != "Shape" ? 1 : 0;
      }
    }
    EXPECT_EQ(attentions, std::string(keep) == "none" ? 4 : 2) << keep;
    EXPECT_EQ(kept, 0) << keep << ": attention's output would be held in both layouts";
  }
}

std::string ErrorOf(const Launch& launch) {
  try {
    RunLaunch(launch);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Context, WrongDegreesAreRefusedInWords) {
  EXPECT_NE(ErrorOf(LaunchOf("mixtral", {8, 8, 1})).find("use a multiple of 16: 16 or 32"), std::string::npos);
  EXPECT_NE(ErrorOf(LaunchOf("mixtral", {4, 3, 1})).find("--context-parallel=3 does not divide 4 ranks"), std::string::npos);
}

}  // namespace
}  // namespace weir
