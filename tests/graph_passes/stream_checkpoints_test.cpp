#include "graph_passes/stream_checkpoints.h"

#include <gtest/gtest.h>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "tests/graph_passes/training_harness.h"

namespace weir {
namespace {

constexpr int64_t kRows = 2 * 128, kWidth = 8, kBoundary = kRows * kWidth * 4;

std::string Stack(int layers) {
  std::string text =
      "graph (int64[batch,sequence] input_ids) => (float[batch,sequence,50] logits)\n"
      "parameter float[50,8] embed\nparameter float[8] g\nparameter float[8,8] w\n{ h0 = Embedding(input_ids, embed)\n";
  for (int l = 0; l < layers; ++l) {
    const std::string i = std::to_string(l), next = std::to_string(l + 1);
    text += "n" + i + " = RmsNorm(h" + i + ", g)\nx" + i + " = Linear(n" + i + ", w)\nt" + i + " = Tanh(x" + i + ")\nh" + next +
            " = Add(h" + i + ", t" + i + ")\n";
  }
  return text + "last = RmsNorm(h" + std::to_string(layers) + ", g)\nlogits = Linear(last, embed) }";
}

TrainingOptions Offloaded(int64_t budget, const char* recompute = "layer") {
  TrainingOptions options;
  options.recompute = recompute;
  options.host_budget = budget;
  return options;
}

std::vector<std::vector<float>> Train(TrainingHarness& training) {
  training.Write("embed", ToFloats(Draw(400, 1)));
  training.Write("g", ToFloats(Draw(8, 2)));
  training.Write("w", ToFloats(Draw(64, 3)));
  std::vector<int64_t> ids, labels;
  for (int64_t i = 0; i < kRows; ++i) ids.push_back(i * 31 % 50), labels.push_back(i % 5 == 0 ? -100 : i * 17 % 50);
  std::vector<std::vector<float>> results;
  for (int step = 1; step <= 3; ++step) {
    training.Step(ids, labels, 0.01, step);
    training.MicroBatch(ids, labels);
    training.executor->Synchronize();
    for (const char* name : {"embed", "g", "w", "embed.grad", "g.grad", "w.grad", "w.m", "w.v"}) {
      std::vector<float> values(static_cast<size_t>(training.executor->TensorOf(*training.graph->FindValue(name)).elements()));
      training.executor->Read(*training.graph->FindValue(name), values.data(), static_cast<int64_t>(values.size() * sizeof(float)));
      results.push_back(values);
    }
    results.push_back({static_cast<float>(training.loss())});
  }
  return results;
}

std::vector<std::vector<float>> Twin(int layers) {
  TrainingHarness training(Stack(layers), 2, 128);
  return Train(training);
}

std::vector<std::string> Ops(const Graph& graph, Phase phase) {
  std::vector<std::string> ops;
  for (const auto& node : graph.nodes()) {
    if (node->phase == phase) ops.push_back(node->op());
  }
  return ops;
}

// Forward: each boundary leaves as soon as it is made and is waited for at its layer's end,
// which here reads it. Backward: the
// next boundary sets out before a layer runs again, and is waited for at its first use.
TEST(StreamCheckpoints, PlacesStartsEarlyAndWaitsLate) {
  const TrainingHarness training(Stack(2), 2, 128, Offloaded(1 << 20));
  EXPECT_EQ(Ops(*training.graph, Phase::kForward),
            (std::vector<std::string>{"Embedding", "StashStart", "RmsNorm", "Linear", "Tanh", "Add", "StashStart", "StashWait",
                                      "RmsNorm", "Linear", "Tanh", "Add", "StashWait", "RmsNorm", "Linear", "CrossEntropy"}));
  auto backward = Ops(*training.graph, Phase::kBackward);
  std::erase_if(backward, [](const std::string& op) { return op.ends_with("Gradient") && op != "RmsNormGradient"; });
  EXPECT_EQ(backward, (std::vector<std::string>{"MatMul", "FetchStart", "RmsNormGradient", "FetchStart", "FetchWait", "RmsNorm", "Linear",
                                                "MatMul", "RmsNormGradient", "Add", "FetchWait", "RmsNorm", "Linear", "MatMul",
                                                "RmsNormGradient", "Add"}));
}

// CKO-02, CKO-05: two slots' worth of restored boundaries whatever the depth; copies slower than compute.
TEST(StreamCheckpoints, AtMostTwoBoundariesAreBackOnTheDevice) {
  for (const int layers : {1, 2, 3, 12}) {
    for (const char* recompute : {"layer", "none"}) {
      const TrainingHarness training(Stack(layers), 2, 128, Offloaded(1 << 20, recompute));
      int64_t most = 0;
      for (int step = 0; step < static_cast<int>(training.plan.steps.size()); ++step) {
        int64_t live = 0;
        for (const PlannedBuffer& buffer : training.plan.buffers) {
          const bool restored = buffer.memory == Memory::kDevice && buffer.name.ends_with(".fetching");
          if (restored && buffer.first_step <= step && step <= buffer.last_step) live += buffer.bytes;
        }
        most = std::max(most, live);
      }
      EXPECT_EQ(most, std::min(layers, 2) * kBoundary) << layers << " layers, recompute " << recompute;
      EXPECT_EQ(training.plan.host_arena_bytes, layers * kBoundary);
      EXPECT_EQ(training.plan.host_ledger.at("boundaries"), layers * kBoundary);
    }
  }
}

TEST(StreamCheckpoints, TheDevicesShareDoesNotGrowWithDepth) {
  const auto arena = [](int layers) { return TrainingHarness(Stack(layers), 2, 128, Offloaded(1 << 20)).plan.arena_bytes; };
  EXPECT_EQ(arena(12), arena(4));
}

// CKO-01, CKO-02, CKO-10
TEST(StreamCheckpoints, SlowCopiesChangeNoBit) {
  const auto twin = Twin(3);
  for (const int64_t budget : {int64_t{0}, kBoundary, kBoundary * 3 / 2, 3 * kBoundary}) {
    for (const char* recompute : {"layer", "none"}) {
      TrainingHarness training(Stack(3), 2, 128, Offloaded(budget, recompute), MakeCpuDevice(std::chrono::milliseconds(3)));
      EXPECT_EQ(Train(training), twin) << "budget " << budget << ", recompute " << recompute;
    }
  }
}

// Without either wait the slow copy meets poison: that the test above passes is due to the waits.
TEST(StreamCheckpoints, AMissingWaitShows) {
  const auto twin = Twin(3);
  for (const char* op : {"StashWait", "FetchWait"}) {
    TrainingHarness training(Stack(3), 2, 128, Offloaded(1 << 20));
    const bool stash = std::string(op) == "StashWait";
    std::vector<Node*> waits;
    for (const auto& node : training.graph->nodes()) {
      if (node->op() == op) waits.push_back(node.get());
    }
    ASSERT_EQ(waits.size(), 3u);
    for (Node* wait : waits) {
      training.graph->ReplaceUses(wait->out(), wait->in(stash ? 1 : 0));
      training.graph->RemoveNode(wait);
    }
    training.graph->RemoveDeadNodes(false);
    const Plan plan = MakePlan(*training.graph, DeviceKind::kCpu);
    training.executor = std::make_unique<Executor>(
        plan, ExecutorOptions{.poison = true, .device = MakeCpuDevice(std::chrono::milliseconds(20))});
    EXPECT_NE(Train(training), twin) << op;
    training.executor.reset();
  }
}

TEST(StreamCheckpoints, SaysWhatTheBudgetLeavesOnTheDevice) {
  const auto graph = ParseText(Stack(3));
  PassManager passes;
  const TrainingOptions options = Offloaded(2 * kBoundary);
  BuildTrainingGraph(*graph, options, passes);
  SpecializeShapes(*graph, 2, 128);
  PlaceOnHost(*graph, options, passes);
  const std::string log = passes.Log();
  EXPECT_NE(log.find("'h1', 8192 bytes"), std::string::npos) << log;
  EXPECT_NE(log.find("stays on the device: 8192 bytes beside 16384 exceed the host budget of 16384"), std::string::npos) << log;
}

TEST(StreamCheckpoints, AskedForWithoutLayersIsAnError) {
  try {
    const TrainingHarness training(
        "graph (int64[batch,sequence] input_ids) => (float[batch,sequence,5] logits)\nparameter float[5,4] w\n"
        "{ h = Embedding(input_ids, w) logits = Linear(h, w) }",
        1, 2, Offloaded(1 << 20, "none"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("no residual sum"), std::string::npos) << error.what();
  }
  EXPECT_THROW(TrainingHarness(Stack(1), 1, 2, Offloaded(-1)), Error);
}

}  // namespace
}  // namespace weir
