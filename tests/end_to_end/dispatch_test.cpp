// Experts spread over ranks and streamed in chunks: the bits of the twin, and PyTorch's gradients.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <mutex>

#include "backend/cpu/thread_communicator.h"
#include "graph/error.h"
#include "importer/importer.h"
#include "importer/safetensors.h"
#include "optim/export.h"
#include "optim/training_session.h"

namespace weir {
namespace {

struct Batch {
  std::unique_ptr<Graph> graph;
  NamedTensors reference;
  std::vector<int64_t> ids, labels;
  int64_t rows = 0, length = 0;
};

const Batch& Stored(const std::string& family) {
  static std::map<std::string, Batch> batches;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  Batch& batch = batches[family];
  if (batch.graph) return batch;
  const std::string folder = WEIR_SOURCE_DIR "/models/" + family + "/";
  batch.reference = ReadSafetensors(folder + "batch8.safetensors").tensors;
  const Safetensors names = ReadSafetensors(folder + "weights.safetensors");
  batch.graph = ReadOnnx(folder + "hf18_batched_mm_eager.onnx");
  PassManager passes;
  Canonicalize(*batch.graph, {.names = &names.tensors, .freeze = {}}, passes);
  batch.ids = batch.reference.at("input_ids")->AsInts();
  batch.labels = batch.reference.at("labels")->AsInts();
  batch.rows = batch.reference.at("labels")->dims()[0];
  batch.length = batch.reference.at("labels")->dims()[1];
  return batch;
}

struct Launch {
  std::string family = "mixtral";
  int64_t world = 1, expert_parallel = 1, steps = 3;
  std::optional<StreamDispatchOptions> stream = {};
  int64_t leaves = 16, unit_rows = 4096;
};

// What every rank agrees on after the steps: losses, the last gradients and the parameters, whole.
struct Outcome {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<float>> gradients, parameters;
  int64_t arena_bytes = 0;
};

void Train(const Launch& launch, Communicator* world, Outcome& outcome) {
  const Batch& batch = Stored(launch.family);
  TrainingOptions options;
  options.layout = {.world = launch.world, .expert_parallel = launch.expert_parallel};
  options.stream_dispatch = launch.stream;
  options.leaves = launch.leaves;
  options.unit_rows = launch.unit_rows;
  const int64_t rows = batch.rows / launch.world, rank = world == nullptr ? 0 : world->rank();
  PassManager passes;
  TrainingSession session(*batch.graph, options, rows, batch.length, {}, passes, DeviceKind::kCpu, world);
  const auto first = rank * rows * batch.length, last = first + rows * batch.length;
  const TrainingSession::MicroBatch micro{{batch.ids.begin() + first, batch.ids.begin() + last},
                                          {batch.labels.begin() + first, batch.labels.begin() + last}};
  for (int64_t step = 1; step <= launch.steps; ++step) {
    const StepResult result = session.ComputeGradients({&micro, 1});
    outcome.losses.push_back(result.loss);
    outcome.norms.push_back(result.grad_norm);
    if (step < launch.steps || launch.steps > 1) session.Update(1e-3, step);
  }
  for (const Value* p : session.parameters()) {
    outcome.gradients.merge(ToSourceLayout(*p, session.Whole(*p, session.Gradient(*p)), true));
    outcome.parameters.merge(ToSourceLayout(*p, session.Whole(*p, session.Data(*p)), true));
  }
  outcome.arena_bytes = session.plan().arena_bytes;
}

void ExpectSame(const Outcome& got, const Outcome& want, const std::string& what) {
  EXPECT_EQ(got.losses, want.losses) << what;
  EXPECT_EQ(got.norms, want.norms) << what;
  for (const auto& [name, values] : want.gradients) {
    EXPECT_EQ(std::memcmp(got.gradients.at(name).data(), values.data(), values.size() * 4), 0) << what << " " << name;
  }
  for (const auto& [name, values] : want.parameters) {
    EXPECT_EQ(std::memcmp(got.parameters.at(name).data(), values.data(), values.size() * 4), 0) << what << " " << name;
  }
}

Outcome RunLaunch(const Launch& launch) {
  std::vector<Outcome> all(static_cast<size_t>(launch.world));
  if (launch.world == 1) {
    Train(launch, nullptr, all[0]);
    return all[0];
  }
  RunRanks(launch.world, [&](Communicator& world) { Train(launch, &world, all[static_cast<size_t>(world.rank())]); });
  for (size_t rank = 1; rank < all.size(); ++rank) ExpectSame(all[rank], all[0], "rank " + std::to_string(rank));
  return all[0];
}

StreamDispatchOptions Chunks(int64_t chunks, double alpha) {
  return {.chunk_tokens = 1, .max_chunks = chunks, .lambda = 1, .alpha = alpha, .min_rows = 1, .max_foreign = 2};
}

struct Degrees {
  int64_t world, expert_parallel;
};
void PrintTo(const Degrees& d, std::ostream* out) { *out << "W" << d.world << "_Ep" << d.expert_parallel; }
std::string Name(const testing::TestParamInfo<Degrees>& info) { return testing::PrintToString(info.param); }

class DispatchBits : public testing::TestWithParam<Degrees> {};

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

double RelativeL2(const std::vector<float>& got, const std::vector<float>& expected) {
  double distance = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    distance += std::pow(static_cast<double>(got[i]) - expected[i], 2);
    norm += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(distance / norm);
}

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
    const NamedTensors& reference = Stored(family).reference;
    EXPECT_NEAR(got.losses[0], reference.at("loss_float64")->AsDoubles()[0], 1e-6 * got.losses[0]) << family;
    int compared = 0;
    double square = 0;
    for (const auto& [name, tensor] : reference) {
      if (!name.starts_with("grad.")) continue;
      const auto expected = tensor->AsFloats();
      EXPECT_LT(RelativeL2(got.gradients.at(name.substr(5)), expected), 1e-5) << family << " " << name;
      for (const float g : expected) square += static_cast<double>(g) * static_cast<double>(g);
      ++compared;
    }
    EXPECT_GT(compared, 20) << family;
    EXPECT_NEAR(got.norms[0], std::sqrt(square), 1e-5 * got.norms[0]) << family;
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
  const Batch& batch = Stored("mixtral");
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
  EXPECT_NE(error({.world = 8, .expert_parallel = 8}).find("experts is 5, expected at least one per rank"), std::string::npos);
}

}  // namespace
}  // namespace weir
