// Documents packed into rows and kept apart: PyTorch's loss and gradients of each document alone, its positions from 0.
#include <gtest/gtest.h>

#include "graph/error.h"
#include "tests/end_to_end/rank_launch.h"

namespace weir {
namespace {

struct Degrees {
  int64_t world, context_parallel, expert_parallel, packed;
};
void PrintTo(const Degrees& d, std::ostream* out) {
  *out << "W" << d.world << "_C" << d.context_parallel << "_Ep" << d.expert_parallel << "_Packed" << d.packed;
}
std::string Name(const testing::TestParamInfo<Degrees>& info) { return testing::PrintToString(info.param); }

Launch LaunchOf(const std::string& family, const Degrees& degrees) {
  return {.family = family,
          .world = degrees.world,
          .expert_parallel = degrees.expert_parallel,
          .context_parallel = degrees.context_parallel,
          .packed = degrees.packed,
          .knobs = [](TrainingOptions& o) { o.pack = "isolate"; }};
}

class PackedTruth : public testing::TestWithParam<Degrees> {};

// Rows of 24 tokens joined to rows of up to 192: over tiles of keys, windows (gpt_oss) and parts of ranks.
TEST_P(PackedTruth, LossAndGradientsAreThoseOfPyTorch) {
  for (const char* family : {"mixtral", "gpt_oss", "olmoe", "qwen3_moe", "deepseek_v3"}) {
    Launch launch = LaunchOf(family, GetParam());
    launch.steps = 1;
    ExpectReference(RunLaunch(launch), family);
  }
}

INSTANTIATE_TEST_SUITE_P(Degrees, PackedTruth, testing::Values(Degrees{1, 1, 1, 8}, Degrees{1, 1, 1, 2}, Degrees{2, 1, 2, 4}, Degrees{2, 2, 1, 8}, Degrees{4, 4, 2, 4}),
                         Name);
// Rows of 48 tokens in eight parts: two ranks a head, each with two runs of 12 queries.
INSTANTIATE_TEST_SUITE_P(SharedHeads, PackedTruth, testing::Values(Degrees{8, 8, 2, 2}, Degrees{3, 3, 1, 4}), Name);

TEST(Packed, NoKnobChangesABitAfterThreeSteps) {
  for (const Degrees& degrees : {Degrees{1, 1, 1, 4}, Degrees{2, 2, 2, 8}, Degrees{8, 8, 1, 4}}) {
    const Launch plain = LaunchOf("gpt_oss", degrees);
    const Outcome twin = RunLaunch(plain);
    const auto compare = [&](const char* what, std::function<void(TrainingOptions&)> knobs) {
      Launch launch = plain;
      launch.knobs = [knobs](TrainingOptions& o) { o.pack = "isolate", knobs(o); };
      ExpectSame(RunLaunch(launch), twin, what);
    };
    compare("strip", [](TrainingOptions& o) { o.strip = 64; });
    compare("recompute", [](TrainingOptions& o) { o.recompute = "layer"; });
    compare("recompute, attention kept", [](TrainingOptions& o) { o.recompute = "layer", o.keep = "attention"; });
    compare("host budget", [](TrainingOptions& o) { o.recompute = "layer", o.host_budget = int64_t{1} << 30; });
  }
}

// Without --pack isolate the same rows give another loss.
TEST(Packed, DocumentsThatAttendToEachOtherAreAnotherModel) {
  Launch launch = LaunchOf("mixtral", {1, 1, 1, 8});
  launch.steps = 1;
  const double apart = RunLaunch(launch).losses[0];
  launch.knobs = {};
  EXPECT_GT(std::abs(RunLaunch(launch).losses[0] - apart), 1e-4);
}

TEST(Packed, StartsThatNoDocumentsHaveAreErrors) {
  const StoredBatch& batch = Stored("mixtral");
  TrainingOptions options;
  options.pack = "isolate";
  PassManager passes;
  TrainingSession session(*batch.graph, options, 1, 24, {}, passes);
  const auto message = [&](std::vector<int64_t> starts) {
    TrainingSession::MicroBatch micro{.input_ids = {batch.ids.begin(), batch.ids.begin() + 24}, .labels = {batch.labels.begin(), batch.labels.begin() + 24},
                                      .document_starts = std::move(starts)};
    try {
      session.ComputeGradients({&micro, 1});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  std::vector<int64_t> starts(24);
  EXPECT_EQ(message(starts), "");
  EXPECT_EQ(message({}), "") << "each row is one document";
  starts[3] = 4;
  EXPECT_NE(message(starts).find("the document of position 3 begins at 4"), std::string::npos);
  EXPECT_NE(message({0, 0}).find("has 2 document starts, expected 1 x 24"), std::string::npos);
}

}  // namespace
}  // namespace weir
