#include "graph_passes/stream_checkpoints.h"

#include <gtest/gtest.h>

#include <functional>

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

// The same with attention in each layer, two heads of 4.
std::string AttentionStack(int layers) {
  std::string text =
      "graph (int64[batch,sequence] input_ids) => (float[batch,sequence,50] logits)\n"
      "parameter float[50,8] embed\nparameter float[8] g\nparameter float[8,8] w\n{ h0 = Embedding(input_ids, embed)\n";
  for (int l = 0; l < layers; ++l) {
    const std::string i = std::to_string(l), next = std::to_string(l + 1);
    text += "n" + i + " = RmsNorm(h" + i + ", g)\nv" + i + " = Linear(n" + i + ", w)\nq" + i + " = Reshape(v" + i + ", int64[4]{0, 0, 2, 4})\na" + i +
            " = ai.weir::Attention<scale = 0.5>(q" + i + ", q" + i + ", q" + i + ")\nf" + i + " = Reshape(a" + i + ", int64[3]{0, 0, 8})\no" + i +
            " = Linear(f" + i + ", w)\nh" + next + " = Add(h" + i + ", o" + i + ")\n";
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

std::vector<std::vector<float>> Twin(const std::string& text) {
  TrainingHarness training(text, 2, 128);
  return Train(training);
}

TrainingOptions Kept(int64_t budget, const char* stash = "attention") {
  TrainingOptions options = Offloaded(budget);
  options.keep = "attention";
  options.stash = stash;
  return options;
}

// The most bytes that buffers named so have on the device at a step.
int64_t MostLive(const Plan& plan, const std::function<bool(const std::string&)>& named) {
  int64_t most = 0;
  for (int step = 0; step < static_cast<int>(plan.steps.size()); ++step) {
    int64_t live = 0;
    for (const PlannedBuffer& buffer : plan.buffers) {
      if (buffer.memory == Memory::kDevice && named(buffer.name) && buffer.first_step <= step && step <= buffer.last_step) live += buffer.bytes;
    }
    most = std::max(most, live);
  }
  return most;
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
      const int64_t most = MostLive(training.plan, [](const std::string& name) { return name.ends_with(".fetching"); });
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
  const auto twin = Twin(Stack(3));
  for (const int64_t budget : {int64_t{0}, kBoundary, kBoundary * 3 / 2, 3 * kBoundary}) {
    for (const char* recompute : {"layer", "none"}) {
      TrainingHarness training(Stack(3), 2, 128, Offloaded(budget, recompute), MakeCpuDevice(std::chrono::milliseconds(3)));
      EXPECT_EQ(Train(training), twin) << "budget " << budget << ", recompute " << recompute;
    }
  }
}

// Without either wait the slow copy meets poison: that the tests above pass is due to the waits.
void ExpectWaitsMatter(const std::string& text, const TrainingOptions& options, size_t copies) {
  const auto twin = Twin(text);
  for (const char* op : {"StashWait", "FetchWait"}) {
    TrainingHarness training(text, 2, 128, options);
    const bool stash = std::string(op) == "StashWait";
    std::vector<Node*> waits;
    for (const auto& node : training.graph->nodes()) {
      if (node->op() == op) waits.push_back(node.get());
    }
    ASSERT_EQ(waits.size(), copies);
    for (Node* wait : waits) {
      if (options.keep == "attention" && wait->out()->name.front() != 'a') continue;
      training.graph->ReplaceUses(wait->out(), wait->in(stash ? 1 : 0));
      training.graph->RemoveNode(wait);
    }
    training.graph->RemoveDeadNodes(false);
    const Plan plan = MakePlan(*training.graph, DeviceKind::kCpu);
    training.executor = std::make_unique<Executor>(
        plan, ExecutorOptions{.poison = true, .device = MakeCpuDevice(std::chrono::milliseconds(8))});
    EXPECT_NE(Train(training), twin) << op;
    training.executor.reset();
  }
}

TEST(StreamCheckpoints, AMissingWaitShows) {
  ExpectWaitsMatter(Stack(3), Offloaded(1 << 20), 3);
  ExpectWaitsMatter(AttentionStack(2), Kept(1 << 20), 6);  // of attention alone
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

constexpr int64_t kSums = kRows * 2 * 4, kAttention = kBoundary + kSums;  // log-sum-exps of two heads

// Attention's output and log-sum-exp leave when made, and are whole at the layer's end; they come back with the
// boundary, a layer ahead, each waited for at its own first use.
TEST(StreamCheckpoints, AttentionReadsAsText) {
  const TrainingHarness training(AttentionStack(1), 2, 128, Kept(1 << 20));
  const std::string text = ToText(*training.graph);
  const size_t begin = text.find("  h0 ="), end = text.find("  phase norm\n");
  EXPECT_EQ(text.substr(begin, end - begin), R"(  h0 = Embedding(input_ids, embed)
  h0.host = StashStart<event = 0>(h0)
  n0 = RmsNorm(h0, g)
  v0 = Linear(n0, w)
  q0 = Reshape(v0, constant)
  a0, a0.lse = ai.weir::Attention<scale = 0.5>(q0, q0, q0)
  a0.lse.host = StashStart<event = 4>(a0.lse)
  a0.host = StashStart<event = 2>(a0)
  f0 = Reshape(a0, constant.2)
  o0 = Linear(f0, w)
  a0.stashed = StashWait<event = 2>(a0, a0.host)
  a0.lse.stashed = StashWait<event = 4>(a0.lse, a0.lse.host)
  h1 = Add(h0, o0)
  h0.stashed = StashWait<event = 0>(h0, h0.host)
  last, last.rstd = RmsNorm(h1, g)
  logits = Linear(last, embed)
  loss, loss.lse = CrossEntropy<ignore_index = -100>(logits, labels, loss_scale)
  phase backward
  logits.grad = CrossEntropyGradient<ignore_index = -100>(logits, labels, loss.lse, loss_scale, const)
  last.grad = MatMul(logits.grad, embed)
  LinearWeightGradient = LinearWeightGradient(last, logits.grad, ZeroFill)
  h0.fetching = FetchStart<event = 1>(h0.stashed)
  a0.fetching = FetchStart<event = 3>(a0.stashed)
  a0.lse.fetching = FetchStart<event = 5>(a0.lse.stashed)
  h1.grad, RmsNormGradient.2 = RmsNormGradient(h1, g, last.rstd, last.grad, ZeroFill.2)
  f0.grad = MatMul(h1.grad, w)
  a0.fetched = FetchWait<event = 3>(a0.fetching, a0.stashed)
  f0.recomputed = Reshape(a0.fetched, constant.2)
  LinearWeightGradient.2 = LinearWeightGradient(f0.recomputed, h1.grad, ZeroFill.3)
  a0.grad = Reshape<allowzero = 1>(f0.grad, Shape.3)
  h0.fetched = FetchWait<event = 1>(h0.fetching, h0.stashed)
  n0.recomputed, n0.rstd.recomputed = RmsNorm(h0.fetched, g)
  v0.recomputed = Linear(n0.recomputed, w)
  q0.recomputed = Reshape(v0.recomputed, constant)
  a0.lse.fetched = FetchWait<event = 5>(a0.lse.fetching, a0.lse.stashed)
  AttentionGradient, AttentionGradient.2, AttentionGradient.3 = AttentionGradient<scale = 0.5>(q0.recomputed, q0.recomputed, q0.recomputed, a0.fetched, a0.lse.fetched, a0.grad)
  Add = Add(AttentionGradient, AttentionGradient.2)
  q0.grad = Add(Add, AttentionGradient.3)
  v0.grad = Reshape<allowzero = 1>(q0.grad, Shape.2.2)
  n0.grad = MatMul(v0.grad, w)
  LinearWeightGradient.3 = LinearWeightGradient(n0.recomputed, v0.grad, LinearWeightGradient.2)
  RmsNormGradient, RmsNormGradient.3 = RmsNormGradient(h0.fetched, g, n0.rstd.recomputed, n0.grad, RmsNormGradient.2)
  h0.grad = Add(h1.grad, RmsNormGradient)
  EmbeddingGradient = EmbeddingGradient(input_ids, h0.grad, LinearWeightGradient)
)");
}

TEST(StreamCheckpoints, AtMostTwoAttentionsAreBackOnTheDevice) {
  for (const int layers : {1, 2, 3, 12}) {
    const TrainingHarness training(AttentionStack(layers), 2, 128, Kept(1 << 20));
    const auto restored = [](char first) { return [first](const std::string& name) { return name.front() == first && name.ends_with(".fetching"); }; };
    EXPECT_EQ(MostLive(training.plan, restored('a')), std::min(layers, 2) * kAttention) << layers;
    EXPECT_EQ(MostLive(training.plan, restored('h')), std::min(layers, 2) * kBoundary) << layers;
    EXPECT_EQ(training.plan.host_ledger.at("boundaries"), layers * kBoundary);
    EXPECT_EQ(training.plan.host_ledger.at("attention"), layers * kAttention);
  }
  const auto arena = [](int layers) {
    const TrainingHarness training(AttentionStack(layers), 2, 128, Kept(1 << 20));
    return training.plan.arena_bytes - training.plan.ledger.at("fixed");  // a layer's shapes
  };
  EXPECT_EQ(arena(12), arena(4));
}

// Boundaries first, in forward order, then attention outputs: budgets that hold part of each. CKO-01, CKO-02, CKO-10
TEST(StreamCheckpoints, SlowCopiesOfAttentionChangeNoBit) {
  const auto twin = Twin(AttentionStack(3));
  for (const int64_t attentions : {0, 1, 2, 3}) {
    TrainingHarness training(AttentionStack(3), 2, 128, Kept(3 * kBoundary + attentions * kAttention + kAttention - 1), MakeCpuDevice(std::chrono::milliseconds(3)));
    EXPECT_EQ(training.plan.host_arena_bytes, 3 * kBoundary + std::min<int64_t>(attentions, 3) * kAttention);
    EXPECT_EQ(Train(training), twin) << attentions << " attention outputs in host memory";
  }
  TrainingHarness boundaries(AttentionStack(3), 2, 128, Kept(1 << 20, "boundaries"));
  EXPECT_EQ(boundaries.plan.host_arena_bytes, 3 * kBoundary);
  EXPECT_EQ(Train(boundaries), twin);
}

// Without recomputation backward reads attention's output through a view, which shares its bytes: it stays, in words.
TEST(StreamCheckpoints, WhatBackwardReadsThroughAViewStays) {
  const auto graph = ParseText(AttentionStack(2));
  PassManager passes;
  const TrainingOptions options = Offloaded(1 << 20, "none");
  BuildTrainingGraph(*graph, options, passes);
  SpecializeShapes(*graph, 2, 128);
  PlaceOnHost(*graph, options, passes);
  EXPECT_EQ(MakePlan(*graph, DeviceKind::kCpu).host_arena_bytes, 2 * kBoundary);
  EXPECT_NE(passes.Log().find("backward reads a view of it"), std::string::npos) << passes.Log();
}

TEST(StreamCheckpoints, WrongStashIsRefused) {
  EXPECT_THROW(TrainingHarness(Stack(1), 1, 2, Kept(1 << 20, "all")), Error);
  EXPECT_THROW(TrainingHarness(Stack(1), 1, 2, Kept(0, "boundaries")), Error);
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
