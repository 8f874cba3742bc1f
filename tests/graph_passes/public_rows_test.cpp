// Small checks of rows of public reports that are about rewritten steps: memory taken at launch, micro-batches beside offload, routers by hand.
#include <gtest/gtest.h>

#include "backend/arena_layout.h"
#include "graph/error.h"
#include "graph_passes/lower_contrib.h"
#include "graph_passes/parameters.h"
#include "tests/graph_passes/training_harness.h"

namespace weir {
namespace {

// The CPU, counting what is asked of its memories.
class Counting final : public Device {
 public:
  DeviceKind kind() const override { return near_->kind(); }
  std::byte* Allocate(int64_t bytes) override { return asked.push_back(bytes), near_->Allocate(bytes); }
  void Free(std::byte* memory, int64_t bytes) noexcept override { near_->Free(memory, bytes); }
  void Upload(std::byte* to, const void* host, int64_t bytes) override { near_->Upload(to, host, bytes); }
  void Download(void* host, const std::byte* from, int64_t bytes) override { near_->Download(host, from, bytes); }
  void Fill(std::byte* to, int byte, int64_t bytes) override { near_->Fill(to, byte, bytes); }
  std::byte* AllocateHost(int64_t bytes) override { return asked_host.push_back(bytes), near_->AllocateHost(bytes); }
  void FreeHost(std::byte* memory, int64_t bytes) noexcept override { near_->FreeHost(memory, bytes); }
  void Synchronize() override { near_->Synchronize(); }
  void Mark(size_t index) override { near_->Mark(index); }
  double MarkSeconds(size_t index) const override { return near_->MarkSeconds(index); }
  Stream* stream() override { return near_->stream(); }
  std::vector<int64_t> asked, asked_host;

 private:
  const std::shared_ptr<Device> near_ = MakeCpuDevice();
};

// A layer's boundary is [2,53,8]: 3392 bytes, charged as 3584, where a power of two would be 4096.
std::string Stack(int layers) {
  std::string text =
      "graph (int64[batch,sequence] input_ids) => (float[batch,sequence,50] logits)\n"
      "parameter float[50,8] embed\nparameter float[8] g\nparameter float[8,8] w\n{ h0 = Embedding(input_ids, embed)\n";
  for (int l = 0; l < layers; ++l) text += StrCat("n", l, " = RmsNorm(h", l, ", g)\nx", l, " = Linear(n", l, ", w)\nh", l + 1, " = Add(h", l, ", x", l, ")\n");
  return text + StrCat("logits = Linear(h", layers, ", embed) }");
}

// MEM-01, MEM-08: memory is asked for in the plan's bytes, none more and none rounded up to a power of two. CKO-04: at launch, and never again.
TEST(PublicRows, MemoryIsTakenOnceAtLaunchAndExactly_MEM01_MEM08_CKO04) {
  TrainingOptions options;
  options.recompute = "layer";
  options.host_budget = 1 << 20;
  options.offload = {.bucket = 100, .slots = 2};
  const auto device = std::make_shared<Counting>();
  TrainingHarness training(Stack(5), 2, 53, options, device);
  const auto bytes = [](int64_t elements) { return Aligned(elements * 4); };
  const int64_t moments = 2 * (bytes(400) + bytes(8) + bytes(64));
  EXPECT_EQ(training.plan.host_arena_bytes, 5 * bytes(2 * 53 * 8) + moments);
  EXPECT_EQ(device->asked, std::vector<int64_t>{training.plan.arena_bytes});
  EXPECT_EQ(device->asked_host, std::vector<int64_t>{training.plan.host_arena_bytes});
  std::vector<int64_t> ids, labels;
  for (int64_t i = 0; i < 106; ++i) ids.push_back(i % 50), labels.push_back((i + 1) % 50);
  for (int step = 1; step <= 3; ++step) training.Step(ids, labels, 0.01, step);
  training.executor->Synchronize();
  EXPECT_EQ(device->asked.size() + device->asked_host.size(), 2u) << "nothing after the launch";
}

// OPT-08: four micro-batches with moments in host memory and slow copies. Each gives (-1/2, 1/2) / 4: the mean is (-1/2, 1/2), its norm 0.70711.
TEST(PublicRows, EveryMicroBatchCountsBesideOffload_OPT08) {
  TrainingOptions options;
  options.max_norm = 0;
  options.weight_decay = 0;
  options.offload = {.bucket = 1, .slots = 2};
  TrainingHarness training("graph (int64[batch,sequence] input_ids) => (float[batch,sequence,2] logits)\nparameter float[3,2] table\n{ logits = Embedding(input_ids, table) }", 1, 1,
                           options, MakeCpuDevice(std::chrono::milliseconds(1)));
  training.Write<float>("table", std::vector<float>(6));
  training.Write<float>("loss_scale", {0.25f});
  training.executor->Run(Phase::kBegin);
  for (int micro = 0; micro < 4; ++micro) training.MicroBatch({0}, {0});
  training.executor->Run(Phase::kNorm);
  training.Write<double>("learning_rate", {0.1});
  training.Write<int64_t>("step", {1});
  training.executor->Run(Phase::kUpdate);
  training.executor->Synchronize();
  EXPECT_NEAR(training.Read<double>("gradient_norm")[0], std::sqrt(0.5), 1e-7);
  const auto near = [&](const char* name, std::vector<float> want) {
    const auto got = training.Read<float>(name);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-7) << name << " " << i;
  };
  near("table.m", {-0.05f, 0.05f, 0, 0, 0, 0});
  near("table.v", {0.0125f, 0.0125f, 0, 0, 0, 0});
  near("table", {0.1f, -0.1f, 0, 0, 0, 0});
}

// RTD-22: top-1 of com.microsoft::MoE. Normalised over the token's own experts each weight is 1, over tokens it would be less; as they are,
// the largest share of the softmax.
TEST(PublicRows, TopOneIsNormalisedOverExperts_RTD22) {
  for (const bool normalise : {true, false}) {
    const auto graph = ParseText(
        StrCat("graph g (float[batch,sequence,4] x, float[batch*sequence,3] logits) => (float[batch,sequence,4] y)\n"
               "parameter float[3,6,4] fc1\nparameter float[3,4,3] fc2\n{\n  y = com.microsoft::MoE<activation_type = \"swiglu\", swiglu_fusion = 1, k = 1",
               normalise ? ", normalize_routing_weights = 1" : "", ">(x, logits, fc1, \"\", fc2)\n}\n"));
    PassManager passes;
    LowerContrib(*graph, passes);
    Value *weights = nullptr, *ids = nullptr;
    for (const auto& node : graph->nodes()) {
      if (node->op() == "Experts") ids = node->in(1), weights = node->in(2);
    }
    ASSERT_NE(weights, nullptr);
    graph->outputs = {weights, ids};
    graph->RemoveDeadNodes(false);
    SpecializeShapes(*graph, 1, 4);
    const Plan plan = MakePlan(*graph, DeviceKind::kCpu);
    Executor executor(plan);
    const std::vector<float> logits = {0, 2, 1, 3, 0, 0, -9, -8, -8.5f, 0, 0, 0};
    executor.Write(*graph->FindValue("logits"), logits.data(), std::ssize(logits) * 4);
    executor.Run();
    std::vector<float> got(4);
    std::vector<int64_t> chosen(4);
    executor.Read(*weights, got.data(), 16);
    executor.Read(*ids, chosen.data(), 32);
    EXPECT_EQ(chosen, (std::vector<int64_t>{1, 0, 1, 0})) << "RTD-16: of equals the first; RTD-28: of negatives the largest";
    for (size_t n = 0; n < 4; ++n) {
      double sum = 0;
      for (size_t e = 0; e < 3; ++e) sum += std::exp(static_cast<double>(logits[3 * n + e]));
      EXPECT_NEAR(got[n], normalise ? 1 : std::exp(static_cast<double>(logits[3 * n + static_cast<size_t>(chosen[n])])) / sum, 1e-6) << n;
    }
  }
}

// RTD-16: eight experts of equal scores, k = 2: the first two, the same when a layer runs again, for ids are kept.
TEST(PublicRows, EqualScoresChooseTheFirstOnBothRuns_RTD16) {
  const std::string text =
      "graph (int64[1,6] input_ids) => (float[1,6,5] logits)\nparameter float[5,4] embed\nparameter float[8,4] gate\n"
      "parameter float[8,4,4] up\nparameter float[8,4,2] down\nconstant int64[1] k = {2}\nconstant int64[2] rows = {-1, 4}\n"
      "{ h = Embedding(input_ids, embed) x = Reshape(h, rows) g = Linear(x, gate) p = Softmax<axis = 1>(g) w, i = TopK<axis = 1>(p, k)\n"
      "y = Experts(x, i, w, up, down) z = Reshape(y, int64[3]{1, 6, 4}) o = Add(h, z) logits = Linear(o, embed) }";
  for (const char* recompute : {"none", "layer"}) {
    TrainingOptions options;
    options.recompute = recompute;
    TrainingHarness training(text, 1, 6, options);
    for (const auto& [name, count] : {std::pair<const char*, int64_t>{"embed", 20}, {"up", 128}, {"down", 64}}) training.Write(name, ToFloats(Draw(count, static_cast<uint32_t>(count))));
    training.Write("gate", std::vector<float>(32));
    training.Step({0, 1, 2, 3, 4, 0}, {1, 2, 3, 4, 0, 1}, 0, 1);
    int experts = 0, choices = 0;
    for (const auto& node : training.graph->nodes()) {
      choices += node->op() == "TopK" ? 1 : 0;
      if (node->op() != "ExpertsGradient") continue;
      ++experts;
      EXPECT_EQ(node->in(1)->producer->op(), "TopK") << "the forward pass's own ids";
      EXPECT_EQ(node->in(1)->producer->phase, Phase::kForward);
    }
    EXPECT_EQ(experts, 1);
    EXPECT_EQ(choices, 1) << "chosen once";
    const auto up = training.Read<float>("up.grad");
    for (size_t e = 0; e < 8; ++e) {
      const bool used = std::any_of(up.begin() + static_cast<int64_t>(e) * 16, up.begin() + static_cast<int64_t>(e + 1) * 16, [](float v) { return v != 0; });
      EXPECT_EQ(used, e < 2) << "expert " << e << ", recompute " << recompute;
    }
  }
}

}  // namespace
}  // namespace weir
