// Experts spread over ranks and streamed in chunks: the bits of the twin, and PyTorch's gradients.
#include <gtest/gtest.h>

#include <mutex>

#include "backend/cpu/thread_communicator.h"
#include "graph/error.h"
#include "importer/safetensors.h"
#include "optim/export.h"
#include "tests/end_to_end/rank_launch.h"

namespace weir {
namespace {

StreamDispatchOptions Chunks(int64_t chunks, double alpha) {
  return {.chunk_tokens = 1, .max_chunks = chunks, .lambda = 1, .alpha = alpha, .min_rows = 1, .max_foreign = 2};
}

struct Degrees {
  int64_t world, expert_parallel;
};
void PrintTo(const Degrees& d, std::ostream* out) { *out << "W" << d.world << "_Ep" << d.expert_parallel; }
std::string Name(const testing::TestParamInfo<Degrees>& info) { return testing::PrintToString(info.param); }

class DispatchBits : public testing::TestWithParam<Degrees> {};

// NUM-05: experts in 1 to 16 tiles, bit by bit.
// Twin: the plain Experts op, or each expert at home and one chunk at expert_parallel > 1. Units of 5 rows cut
// nearly every expert's rows.
TEST_P(DispatchBits, AreThoseOfTheTwinAfterThreeSteps) {
  for (const char* family : {"mixtral", "gpt_oss"}) {
    Launch launch{.family = family, .world = GetParam().world, .expert_parallel = GetParam().expert_parallel,
                  .unit_rows = 5};
    const Outcome twin = RunLaunch(launch);
    const auto compare = [&](int64_t chunks, double alpha) {
      launch.stream = Chunks(chunks, alpha);
      ExpectSame(RunLaunch(launch), twin, StrCat(family, " chunks ", chunks, " alpha ", alpha));
    };
    for (const int64_t chunks : {1, 2, 3, 5, 16}) compare(chunks, 1.1);
    if (launch.expert_parallel == 1) continue;
    for (const double alpha : {1.0, 2.0}) compare(3, alpha);
  }
}

INSTANTIATE_TEST_SUITE_P(Degrees, DispatchBits,
                         testing::Values(Degrees{1, 1}, Degrees{2, 1}, Degrees{2, 2}, Degrees{4, 1}, Degrees{4, 2},
                                         Degrees{4, 4}),
                         Name);

class DispatchTruth : public testing::TestWithParam<Degrees> {};

// RTD-07, RTD-08: gradients of experts and of the router are PyTorch's, whoever computes the experts.
TEST_P(DispatchTruth, GradientsAreThoseOfPyTorch) {
  for (const char* family : {"mixtral", "gpt_oss", "olmoe", "qwen3_moe", "deepseek_v3"}) {
    const Outcome got = RunLaunch({.family = family,
                             .world = GetParam().world,
                             .expert_parallel = GetParam().expert_parallel,
                             .steps = 1,
                             .stream = Chunks(3, 1.1),
                             .unit_rows = 9});
    ExpectReference(got, family);
  }
}

INSTANTIATE_TEST_SUITE_P(Degrees, DispatchTruth,
                         testing::Values(Degrees{1, 1}, Degrees{2, 2}, Degrees{4, 2}, Degrees{4, 4}, Degrees{8, 4}),
                         Name);

// The arena bounds what chunks bring: fewer tokens at once, fewer bytes, on a single device too.
TEST(Dispatch, ChunksShrinkTheArena) {
  const auto bytes = [](int64_t world, int64_t chunks) {
    return RunLaunch({.world = world, .expert_parallel = world, .steps = 1, .stream = Chunks(chunks, 1)}).arena_bytes;
  };
  EXPECT_LT(bytes(1, 16), bytes(1, 1));
  EXPECT_LT(bytes(2, 16), bytes(2, 1));
}

TEST(Dispatch, AFileOfWeightsHoldsAllExperts) {
  const StoredBatch& batch = Stored("mixtral");
  const std::string path = testing::TempDir() + "/dispatch_weights.safetensors";
  RunRanks(2, [&](Communicator& world) {
    TrainingOptions options;
    options.layout = {.world = 2, .expert_parallel = 2};
    PassManager passes;
    SaveWeights(TrainingSession(*batch.graph, options, 4, batch.length, {}, passes, DeviceKind::kCpu, &world), path, 0);
  });
  const NamedTensors saved = ReadSafetensors(path).tensors;
  const NamedTensors original = ReadSafetensors(WEIR_SOURCE_DIR "/models/mixtral/weights.safetensors").tensors;
  int compared = 0;
  for (const auto& [name, tensor] : saved) {
    ASSERT_TRUE(original.contains(name)) << name;
    EXPECT_EQ(tensor->AsFloats(), original.at(name)->AsFloats()) << name;
    ++compared;
  }
  EXPECT_GT(compared, 20);
}

// Random starts do not depend on who holds an expert.
TEST(Dispatch, RandomWeightsAreTheSameWhereverTheyLie) {
  const auto graph = Clone(*Stored("mixtral").graph);
  for (auto& [name, data] : graph->initializers) data = nullptr;
  const auto start = [&](int64_t ranks) {
    std::map<std::string, std::vector<float>> values;
    std::mutex mutex;
    RunRanks(ranks, [&](Communicator& world) {
      TrainingOptions options;
      options.layout = {.world = ranks, .expert_parallel = ranks};
      PassManager passes;
      TrainingSession session(*graph, options, 1, 8, {.enabled = true, .seed = 3}, passes, DeviceKind::kCpu, &world);
      for (const Value* p : session.parameters()) {
        auto whole = session.Whole(*p, session.Data(*p));
        const std::lock_guard lock(mutex);
        values[p->name] = std::move(whole);
      }
    });
    return values;
  };
  EXPECT_EQ(start(1), start(2));
}

TEST(Dispatch, WrongKnobsAreRefusedInWords) {
  const auto error = [](Launch launch) -> std::string {
    try {
      RunLaunch(launch);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  StreamDispatchOptions stream = Chunks(1, 0.5);
  EXPECT_NE(error({.world = 2, .expert_parallel = 2, .stream = stream}).find("alpha is 0.5"), std::string::npos);
  EXPECT_NE(error({.world = 4, .expert_parallel = 3}).find("3"), std::string::npos);
  EXPECT_NE(error({.world = 8, .expert_parallel = 8}).find("--expert-parallel=8 spreads the experts over 8 ranks, but experts after TopK 'node_topk__1' has 5; give 5 or less"), std::string::npos);
}

}  // namespace
}  // namespace weir
