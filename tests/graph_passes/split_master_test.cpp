#include "graph_passes/split_master.h"

#include <gtest/gtest.h>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/parameter_kind.h"
#include "graph_passes/pipeline.h"
#include "graph_passes/shard_optimizer.h"
#include "importer/importer.h"
#include "tests/graph_passes/golden.h"

namespace weir {
namespace {

// Read through its Cast twice; read in float32 as well; read in float32 alone.
std::unique_ptr<Graph> Step() {
  auto graph = ParseText(R"(graph (bfloat16[2,4] x, double[] rate, int64[] step) => (bfloat16[2,4] y, float[5,4] t)
parameter float[4,4] a
parameter float[5,4] b
parameter float[4] c
constant float[] one = {1}
gradient float[4,4] a.grad
gradient float[5,4] b.grad
gradient float[4] c.grad
state float[4,4] a.m
state float[4,4] a.v
state float[5,4] b.m
state float[5,4] b.v
state float[4] c.m
state float[4] c.v
{
  phase begin
  a.bf16 = Cast<to = 16>(a)
  b.bf16 = Cast<to = 16>(b)
  phase forward
  u = Linear(x, a.bf16)
  w = Linear(u, a.bf16)
  n = RmsNorm(w, c)
  k = Linear(n, b.bf16)
  y = MatMul(k, b.bf16)
  t = Neg(b)
  phase update
  a1, a2, a3 = AdamW<weight_decay = 0.5>(a, a.grad, a.m, a.v, rate, step, one)
  b1, b2, b3 = AdamW(b, b.grad, b.m, b.v, rate, step, one)
  c1, c2, c3 = AdamW(c, c.grad, c.m, c.v, rate, step, one)
})");
  for (Value* value : graph->ValuesWithRole(Role::kParameter)) value->parameter = std::make_unique<ParameterInfo>();
  return graph;
}

TEST(SplitMasters, SplitsWhatIsReadThroughItsCastAlone) {
  const auto graph = Step();
  PassContext context;
  EXPECT_TRUE(SplitMasters().Run(*graph, context));
  VerifyGraph(*graph);
  EXPECT_EQ(context.matches, 1);
  ASSERT_EQ(context.misses.size(), 2u);
  EXPECT_NE(context.misses[0].find("is read in float32 by Neg"), std::string::npos) << context.misses[0];
  EXPECT_NE(context.misses[1].find("is read in float32 by RmsNorm"), std::string::npos) << context.misses[1];
  const std::string text = ToText(*graph);
  EXPECT_NE(text.find("parameter bfloat16[4,4] a\n"), std::string::npos) << text;
  EXPECT_NE(text.find("parameter float[5,4] b\n"), std::string::npos) << text;
  EXPECT_NE(text.find("state uint16[4,4] a.low\n"), std::string::npos) << text;
  EXPECT_EQ(text.substr(text.find("  phase begin")), R"(  phase begin
  b.bf16 = Cast<to = 16>(b)
  phase forward
  u = Linear(x, a)
  w = Linear(u, a)
  n = RmsNorm(w, c)
  k = Linear(n, b.bf16)
  y = MatMul(k, b.bf16)
  t = Neg(b)
  phase update
  a1, a2, a3, a1.low = AdamW<weight_decay = 0.5>(a, a.grad, a.m, a.v, rate, step, one, a.low)
  b1, b2, b3 = AdamW(b, b.grad, b.m, b.v, rate, step, one)
  c1, c2, c3 = AdamW(c, c.grad, c.m, c.v, rate, step, one)
}
)");
}

// The share of a sharded optimizer is split, and gathered as it is.
TEST(SplitMasters, SplitsSharesAndStreamsTheirLowHalves) {
  const auto graph = Step();
  PassContext sharded, split, streamed;
  ShardOptimizer({.world = 2}, 0).Run(*graph, sharded);
  SplitMasters().Run(*graph, split);
  StreamOptimizer({.bucket = 6, .slots = 3, .resident = 32}).Run(*graph, streamed);
  VerifyGraph(*graph);
  const std::string text = ToText(*graph);
  for (const char* line : {"parameter bfloat16[2,4] a\n", "state uint16[2,4] a.low\n", "a.bf16.whole = AllGatherRows<group = \"world\", ranks = 2, rows = 4>(a)\n",
                           "optimizer.ring = PrefetchState<bucket = 6, slot_bytes = 64, slots = 3>(a.m, a.v, a.low)\n",
                           "a1, a2, a3, a1.low, optimizer.ring.2 = OffloadStreamAdamW<bucket = 6, fetched = 2, first = 0, slots = 3, weight_decay = 0.5>(a, "
                           "a.grad.held, a.m, a.v, rate, step, one, a.low, optimizer.ring, b.m, b.v)\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "in\n" << text;
  }
  ASSERT_EQ(streamed.misses.size(), 1u);  // c: 32 bytes
  EXPECT_NE(streamed.misses[0].find("32 bytes within --resident"), std::string::npos);
}

class SplitModel : public testing::TestWithParam<const char*> {};

// Of a whole model every matrix is split and no Cast of a parameter is left, alone and over ranks.
TEST_P(SplitModel, LeavesNoCopyOfAWeight) {
  for (const bool ranks : {false, true}) {
    TrainingOptions options;
    options.precision = "bfloat16";
    options.strip = 256;
    if (ranks) options.layout = {.world = 4, .expert_parallel = 2};
    options.shard_optimizer = ranks;
    PassManager passes;
    const auto graph = ReadOnnx(StrCat(WEIR_SOURCE_DIR "/models/", GetParam(), "/dynamo23_batched_mm_eager.onnx"));
    Canonicalize(*graph, {}, passes);
    BuildTrainingGraph(*graph, options, passes);
    VerifyGraph(*graph);
    int split = 0;
    for (const auto& value : graph->values()) {
      if (value->role != Role::kParameter) continue;
      const bool matrix = KindOf(*value) == ParameterKind::kMatrix;  // biases of experts have two axes
      if (!matrix) continue;
      ++split;
      EXPECT_EQ(value->dtype, DType::kBFloat16) << value->name;
      EXPECT_NE(graph->FindValue(value->name + ".low"), nullptr) << value->name;
      for (const Use& use : value->uses) EXPECT_NE(use.node->op(), "Cast") << value->name;
    }
    EXPECT_GT(split, 10);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, SplitModel, testing::Values("mixtral", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v3"));

}  // namespace
}  // namespace weir
