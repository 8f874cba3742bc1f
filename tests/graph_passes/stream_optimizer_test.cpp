#include "graph_passes/stream_optimizer.h"

#include <gtest/gtest.h>

#include "graph/error.h"
#include "graph/text.h"
#include "graph_passes/pipeline.h"
#include "tests/graph_passes/training_harness.h"

namespace weir {
namespace {

constexpr const char* kModel =
    "graph (int64[batch,sequence] input_ids) => (float[batch,sequence,5] logits)\n"
    "parameter float[5,4] embed\nparameter float[4] gamma\nparameter float[5,4] head\n"
    "{ h = Embedding(input_ids, embed) n = RmsNorm(h, gamma) logits = Linear(n, head) }";

std::string UpdateOf(const StreamOptimizerOptions& offload, std::string* log = nullptr, const char* from = "  phase update\n") {
  const auto graph = ParseText(kModel);
  TrainingOptions options;
  options.offload = offload;
  PassManager passes;
  BuildTrainingGraph(*graph, options, passes);
  if (log != nullptr) *log = passes.Log();
  const std::string text = ToText(*graph);
  return text.substr(text.find(from));
}

// The largest parameters leave; gamma's 32 bytes of moments fit beside neither of the 160.
TEST(StreamOptimizer, ReadsAsText) {
  std::string log;
  EXPECT_EQ(UpdateOf({.bucket = 7, .slots = 3, .resident = 191}, &log), R"(  phase update
  embed.updated, embed.updated.2, embed.updated.3, "", optimizer.ring.2 = OffloadStreamAdamW<beta1 = 0.9, beta2 = 0.95, bucket = 7, epsilon = 1e-08, fetched = 3, first = 0, slots = 3, weight_decay = 0.1>(embed, EmbeddingGradient, embed.m, embed.v, learning_rate, step, clip_coefficient, "", optimizer.ring, head.m, head.v)
  gamma.updated, gamma.updated.2, gamma.updated.3 = AdamW<beta1 = 0.9, beta2 = 0.95, epsilon = 1e-08, weight_decay = 0.0>(gamma, RmsNormGradient.2, gamma.m, gamma.v, learning_rate, step, clip_coefficient)
  head.updated, head.updated.2, head.updated.3, "", optimizer.ring.3 = OffloadStreamAdamW<beta1 = 0.9, beta2 = 0.95, bucket = 7, epsilon = 1e-08, fetched = 6, first = 3, slots = 3, weight_decay = 0.1>(head, LinearWeightGradient, head.m, head.v, learning_rate, step, clip_coefficient, "", optimizer.ring.2)
}
)");
  EXPECT_TRUE(UpdateOf({.bucket = 7, .slots = 3, .resident = 191}, nullptr, "  phase norm\n")
                  .starts_with("  phase norm\n  optimizer.ring = PrefetchState<bucket = 7, slot_bytes = 64, slots = 3>(embed.m, embed.v)\n"));
  EXPECT_NE(log.find("state stays on the device, 32 bytes within --resident"), std::string::npos) << log;
}

// Parameters of several buckets, of one, of a part of one; copies slower than compute, and what is not planned is poisoned.
TEST(StreamOptimizer, StreamsThroughOneRingWithTheBitsOfAdamW) {
  const auto state_after = [](const StreamOptimizerOptions& offload) {
    TrainingOptions options;
    options.offload = offload;
    TrainingHarness run(kModel, 1, 4, options, MakeCpuDevice(std::chrono::milliseconds(2)));
    for (const auto& [name, size] : {std::pair{"embed", 20}, {"gamma", 4}, {"head", 20}}) run.Write(name, ToFloats(Draw(static_cast<size_t>(size), 7)));
    for (int64_t step = 1; step <= 3; ++step) run.Step({0, 3, 1, 4}, {3, -100, 4, 2}, 0.01, step);
    std::vector<float> all;
    for (const char* name : {"embed", "gamma", "head"}) {
      for (const char* suffix : {"", ".m", ".v"}) {
        const auto values = run.Read<float>(std::string(name) + suffix);
        all.insert(all.end(), values.begin(), values.end());
      }
    }
    return all;
  };
  const std::vector<float> want = state_after({});
  for (const int64_t bucket : {3, 4, 19, 1000}) {
    for (const int64_t slots : {1, 2, 3, 9}) {
      EXPECT_EQ(state_after({.bucket = bucket, .slots = slots, .resident = 0}), want) << "bucket " << bucket << " slots " << slots;
    }
  }
}

// One ring for all, of the largest parameter's size at most.
TEST(StreamOptimizer, RingIsNoLargerThanItsParametersNeed) {
  const auto staging = [](int64_t bucket, int64_t slots) {
    TrainingOptions options;
    options.offload = {.bucket = bucket, .slots = slots, .resident = 0};
    const TrainingHarness run(kModel, 1, 4, options);
    int64_t bytes = 0;
    for (const PlannedBuffer& buffer : run.plan.buffers) bytes += buffer.term == "staging" ? buffer.bytes : 0;
    return bytes;
  };
  EXPECT_EQ(staging(64, 64), 3 * 20 * 8);  // a bucket for each parameter
  EXPECT_EQ(staging(8, 2), 2 * 8 * 8);
}

TEST(StreamOptimizer, ResidentIsAByteBound) {
  const auto count = [](int64_t resident) {
    const std::string text = UpdateOf({.bucket = 7, .slots = 1, .resident = resident});
    int streamed = 0;
    for (size_t at = text.find("OffloadStreamAdamW"); at != std::string::npos; at = text.find("OffloadStreamAdamW", at + 1)) ++streamed;
    return streamed;
  };
  EXPECT_EQ(count(0), 3);
  EXPECT_EQ(count(31), 3);
  EXPECT_EQ(count(32), 2);
  EXPECT_EQ(count(192), 1);
  EXPECT_EQ(count(352), 0);
}

TEST(StreamOptimizer, RefusesNegativeKnobs) {
  EXPECT_THROW(UpdateOf({.bucket = -1}), Error);
  EXPECT_THROW(UpdateOf({.bucket = 1, .slots = 0}), Error);
  EXPECT_THROW(UpdateOf({.bucket = 1, .slots = 1, .resident = -1}), Error);
}

}  // namespace
}  // namespace weir
