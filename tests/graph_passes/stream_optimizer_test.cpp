#include "graph_passes/stream_optimizer.h"

#include <gtest/gtest.h>

#include "graph/error.h"
#include "graph/text.h"
#include "graph_passes/pipeline.h"

namespace weir {
namespace {

constexpr const char* kModel =
    "graph (int64[batch,sequence] input_ids) => (float[batch,sequence,5] logits)\n"
    "parameter float[5,4] embed\nparameter float[4] gamma\nparameter float[5,4] head\n"
    "{ h = Embedding(input_ids, embed) n = RmsNorm(h, gamma) logits = Linear(n, head) }";

std::string UpdateOf(const StreamOptimizerOptions& offload, std::string* log = nullptr) {
  const auto graph = ParseText(kModel);
  TrainingOptions options;
  options.offload = offload;
  PassManager passes;
  BuildTrainingGraph(*graph, options, passes);
  if (log != nullptr) *log = passes.Log();
  const std::string text = ToText(*graph);
  return text.substr(text.find("  phase update\n"));
}

// The largest parameters leave; gamma's 32 bytes of moments fit beside neither of the 160.
TEST(StreamOptimizer, ReadsAsText) {
  std::string log;
  EXPECT_EQ(UpdateOf({.bucket = 7, .slots = 3, .resident = 191}, &log), R"(  phase update
  embed.updated, embed.updated.2, embed.updated.3 = OffloadStreamAdamW<beta1 = 0.9, beta2 = 0.95, bucket = 7, epsilon = 1e-08, slots = 3, weight_decay = 0.1>(embed, EmbeddingGradient, embed.m, embed.v, learning_rate, step, clip_coefficient)
  gamma.updated, gamma.updated.2, gamma.updated.3 = AdamW<beta1 = 0.9, beta2 = 0.95, epsilon = 1e-08, weight_decay = 0.0>(gamma, RmsNormGradient.2, gamma.m, gamma.v, learning_rate, step, clip_coefficient)
  head.updated, head.updated.2, head.updated.3 = OffloadStreamAdamW<beta1 = 0.9, beta2 = 0.95, bucket = 7, epsilon = 1e-08, slots = 3, weight_decay = 0.1>(head, LinearWeightGradient, head.m, head.v, learning_rate, step, clip_coefficient)
}
)");
  EXPECT_NE(log.find("state stays on the device, 32 bytes within --resident"), std::string::npos) << log;
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
