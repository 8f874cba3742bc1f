#include "graph_passes/shard_optimizer.h"

#include "graph/error.h"
#include "graph/op_schema.h"
#include "tests/graph_passes/golden.h"

namespace weir {
namespace {

// A matrix that is read directly, one that is read through its Cast, and a vector.
std::unique_ptr<Graph> Step() {
  auto graph = ParseText(R"(graph (float[2,4] x, double[] rate, int64[] step) => (bfloat16[2,3] y)
parameter float[5,4] a
parameter float[3,5] b
parameter float[3] c
constant float[] one = {1}
gradient float[5,4] a.grad
gradient float[3,5] b.grad
gradient float[3] c.grad
state float[5,4] a.m
state float[5,4] a.v
state float[3,5] b.m
state float[3,5] b.v
state float[3] c.m
state float[3] c.v
{
  phase begin
  b.bf16 = Cast<to = 16>(b)
  phase forward
  u = Linear(x, a)
  n = Cast<to = 16>(u)
  y = Linear(n, b.bf16, c)
  phase update
  a1, a2, a3 = AdamW(a, a.grad, a.m, a.v, rate, step, one)
  b1, b2, b3 = AdamW(b, b.grad, b.m, b.v, rate, step, one)
  c1, c2, c3 = AdamW(c, c.grad, c.m, c.v, rate, step, one)
})");
  for (Value* value : graph->ValuesWithRole(Role::kParameter)) value->parameter = std::make_unique<ParameterInfo>();
  return graph;
}

TEST(ShardOptimizer, StepsAShareOfTheRowsAndGathersThemOnce) {
  const auto graph = Step();
  PassContext context;
  EXPECT_TRUE(ShardOptimizer({.world = 2}, 1).Run(*graph, context));
  VerifyGraph(*graph);
  EXPECT_EQ(context.matches, 2);
  ASSERT_EQ(context.misses.size(), 1u);
  EXPECT_NE(context.misses[0].find("is a vector"), std::string::npos);
  const std::string text = ToText(*graph);
  EXPECT_EQ(text.substr(text.find("  phase begin")), R"(  phase begin
  b.bf16 = Cast<to = 16>(b)
  b.bf16.whole = AllGatherRows<group = "world", ranks = 2, rows = 3>(b.bf16)
  a.whole = AllGatherRows<group = "world", ranks = 2, rows = 5>(a)
  phase forward
  u = Linear(x, a.whole)
  n = Cast<to = 16>(u)
  y = Linear(n, b.bf16.whole, c)
  phase update
  a.grad.held = Slice(a.grad, const, const.2, const.3)
  a1, a2, a3 = AdamW(a, a.grad.held, a.m, a.v, rate, step, one)
  b.grad.held = Slice(b.grad, const.4, const.5, const.6)
  b1, b2, b3 = AdamW(b, b.grad.held, b.m, b.v, rate, step, one)
  c1, c2, c3 = AdamW(c, c.grad, c.m, c.v, rate, step, one)
}
)");
  const auto shape = [&](const char* name) { return ToString(graph->FindValue(name)->shape); };
  EXPECT_EQ(shape("a"), "[2,4]");  // rows 3 and 4 of 5
  EXPECT_EQ(shape("a.m"), "[2,4]");
  EXPECT_EQ(shape("a.grad"), "[5,4]");
  EXPECT_EQ(shape("b.bf16"), "[1,5]");
  EXPECT_EQ(shape("b.bf16.whole"), "[3,5]");
  EXPECT_EQ(graph->FindValue("const")->data->AsInts(), std::vector<int64_t>{3});
  EXPECT_EQ(graph->FindValue("const.2")->data->AsInts(), std::vector<int64_t>{5});
  const auto& shard = graph->FindValue("a")->parameter->shard;
  ASSERT_TRUE(shard.has_value());
  EXPECT_EQ(shard->first, 3);
  EXPECT_EQ(shard->total, 5);
}

TEST(ShardOptimizer, SaysWhyNothingIsSharded) {
  for (const auto& [world, why] : {std::pair{1, "one rank holds everything"}, {8, "has 5 rows for 8 ranks"}}) {
    const auto graph = Step();
    PassContext context;
    try {
      ShardOptimizer({.world = world}, 0).Run(*graph, context);
      FAIL() << world;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace weir
