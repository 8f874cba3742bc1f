// Moments and master weights spread over ranks: the twin's bits, fewer bytes, checkpoints that any layout reads.
#include <gtest/gtest.h>

#include <filesystem>
#include <mutex>

#include "backend/cpu/thread_communicator.h"
#include "graph/error.h"
#include "importer/safetensors.h"
#include "optim/checkpoint.h"
#include "optim/export.h"
#include "tests/end_to_end/rank_launch.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

struct Degrees {
  int64_t world, expert_parallel, context_parallel;
};
void PrintTo(const Degrees& d, std::ostream* out) { *out << "W" << d.world << "_Ep" << d.expert_parallel << "_C" << d.context_parallel; }

class ShardedOptimizer : public testing::TestWithParam<Degrees> {};

TEST_P(ShardedOptimizer, HasTheTwinsBitsAfterThreeSteps) {
  for (const char* family : {"mixtral", "gpt_oss", "deepseek_v3"}) {
    Launch launch{.family = family, .world = GetParam().world, .expert_parallel = GetParam().expert_parallel,
                  .context_parallel = GetParam().context_parallel};
    const Outcome twin = RunLaunch(launch);
    ExpectReference(RunLaunch([&] {
                      Launch one = launch;
                      one.steps = 1;
                      one.knobs = [](TrainingOptions& o) { o.shard_optimizer = true; };
                      return one;
                    }()),
                    family);
    const auto compare = [&](const char* what, std::function<void(TrainingOptions&)> knobs) {
      launch.knobs = [&](TrainingOptions& o) {
        o.shard_optimizer = true;
        knobs(o);
      };
      ExpectSame(RunLaunch(launch), twin, StrCat(family, " ", what));
    };
    compare("alone", [](TrainingOptions&) {});
    compare("bucket", [](TrainingOptions& o) { o.offload = {.bucket = 1000, .slots = 2, .resident = 5000}; });
    compare("recompute, strip", [](TrainingOptions& o) { o.recompute = "layer", o.strip = 64; });
  }
}

INSTANTIATE_TEST_SUITE_P(Degrees, ShardedOptimizer,
                         testing::Values(Degrees{2, 1, 1}, Degrees{4, 2, 1}, Degrees{4, 1, 2}, Degrees{8, 4, 2}),
                         [](const auto& info) { return testing::PrintToString(info.param); });

TrainingOptions Sharded(int64_t world, int64_t expert_parallel, bool shard = true) {
  TrainingOptions options;
  options.layout = {.world = world, .expert_parallel = expert_parallel};
  options.shard_optimizer = shard;
  return options;
}

// Rank 0's rows, the first of what does not divide; vectors are whole.
TEST(ShardedOptimizerPlan, HoldsAShareOfMomentsAndMasters) {
  for (const char* precision : {"float32", "bfloat16"}) {
    TrainingOptions options = Sharded(4, 1);
    options.precision = precision;
    auto graph = Clone(*Stored("mixtral").graph);
    PassManager passes;
    BuildTrainingGraph(*graph, options, passes);
    int matrices = 0;
    for (const Value* whole : Stored("mixtral").graph->ValuesWithRole(Role::kParameter)) {
      Dims dims = ToDims(whole->shape);
      if (dims.size() > 1) dims[0] = (dims[0] + 3) / 4;
      matrices += dims.size() > 1 ? 1 : 0;
      for (const char* suffix : {"", ".m", ".v"}) {
        EXPECT_EQ(ToDims(graph->FindValue(whole->name + suffix)->shape), dims) << precision << " " << whole->name << suffix;
      }
    }
    EXPECT_GT(matrices, 10);
  }
  const auto optimizer = [](bool shard) {
    auto graph = Clone(*Stored("mixtral").graph);
    PassManager passes;
    BuildTrainingGraph(*graph, Sharded(4, 1, shard), passes);
    SpecializeShapes(*graph, 1, 8);
    const Plan plan = MakePlan(*graph, DeviceKind::kCpu);
    int64_t bytes = 0;
    for (const PlannedBuffer& buffer : plan.buffers) bytes += buffer.term == "optimizer" ? buffer.bytes : 0;
    return bytes;
  };
  EXPECT_LT(optimizer(true), optimizer(false) * 4 / 10);  // 5 experts: 2 of them on rank 0
}

TEST(ShardedOptimizerWeights, AreSavedWholeAndDrawnAlike) {
  const StoredBatch& batch = Stored("mixtral");
  const auto random = Clone(*batch.graph);
  for (auto& [name, data] : random->initializers) data = nullptr;
  const std::string stored = testing::TempDir() + "/sharded.safetensors", plain = testing::TempDir() + "/plain_random.safetensors",
                    sharded = testing::TempDir() + "/sharded_random.safetensors";
  const auto save = [&](const Graph& graph, bool shard, const std::string& path) {
    RunRanks(2, [&](Communicator& world) {
      PassManager passes;
      SaveWeights(TrainingSession(graph, Sharded(2, 2, shard), 1, 8, {.enabled = true, .seed = 3}, passes, DeviceKind::kCpu, &world), path, 0);
    });
  };
  save(*batch.graph, true, stored);
  save(*random, true, sharded);
  save(*random, false, plain);
  const NamedTensors saved = ReadSafetensors(stored).tensors, original = ReadSafetensors(WEIR_SOURCE_DIR "/models/mixtral/weights.safetensors").tensors;
  for (const auto& [name, tensor] : saved) EXPECT_EQ(tensor->AsFloats(), original.at(name)->AsFloats()) << name;
  const NamedTensors a = ReadSafetensors(plain).tensors, b = ReadSafetensors(sharded).tensors;
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_EQ(b.at(name)->AsFloats(), tensor->AsFloats()) << name;
}

using Tensors = std::map<std::string, std::vector<float>>;

Tensors AllOf(const TrainingSession& session) {
  Tensors all;
  for (const Value* p : session.parameters()) {
    all[p->name] = session.Whole(*p, session.Data(*p));
    for (const char* moment : {"m", "v"}) all[p->name + "." + moment] = session.Whole(*p, session.Moment(*p, moment));
  }
  return all;
}

// Experts over two ranks and the rest sharded, read back by one rank and by another layout.
TEST(ShardedOptimizerCheckpoint, IsReadByAnyLayout) {
  const StoredBatch& batch = Stored("mixtral");
  const fs::path folder = fs::path(testing::TempDir()) / "sharded_checkpoints";
  fs::remove_all(folder);
  fs::create_directories(folder);
  const Checkpoints checkpoints(folder);
  Tensors saved;
  std::mutex mutex;
  RunRanks(4, [&](Communicator& world) {
    PassManager passes;
    TrainingSession session(*batch.graph, Sharded(4, 2), 2, batch.length, {}, passes, DeviceKind::kCpu, &world);
    const auto first = world.rank() * 2 * batch.length, last = first + 2 * batch.length;
    const TrainingSession::MicroBatch micro{{batch.ids.begin() + first, batch.ids.begin() + last},
                                            {batch.labels.begin() + first, batch.labels.begin() + last}};
    session.ComputeGradients({&micro, 1});
    session.Update(1e-3, 1);
    checkpoints.Save(session, {.step = 1, .updates = 1, .samples = 8, .tokens = 9, .losses = {}, .identity = {}});
    auto all = AllOf(session);
    const std::lock_guard lock(mutex);
    saved = std::move(all);
  });
  ASSERT_EQ(checkpoints.List().size(), 1u);
  const auto read = [&](const TrainingOptions& options, Communicator* world) {
    PassManager passes;
    std::vector<std::string> notices;
    TrainingSession session(*batch.graph, options, 1, 8, {}, passes, DeviceKind::kCpu, world);
    ASSERT_TRUE(checkpoints.LoadLatest(session, {}, notices).has_value());
    EXPECT_EQ(AllOf(session), saved);
  };
  read({}, nullptr);
  RunRanks(2, [&](Communicator& world) { read(Sharded(2, 1), &world); });
  RunRanks(2, [&](Communicator& world) { read(Sharded(2, 2, false), &world); });
}

}  // namespace
}  // namespace weir
