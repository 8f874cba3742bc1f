#include "graph_passes/stream_dispatch.h"

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/shard_experts.h"
#include "tests/graph_passes/golden.h"

namespace weir {
namespace {

std::unique_ptr<Graph> Layer() {
  auto graph = ParseText(R"(graph (float[6,4] x, int64[6,2] ids, float[6,2] w, float[6,4] dy) => (float[6,4] y, float[6,4] dx)
parameter float[5,6,4] gate_up
parameter float[5,4,3] down
{
  y = Experts<limit = 7.0>(x, ids, w, gate_up, down)
  phase backward
  dx, dw, dgate_up, ddown = ExpertsGradient<leaves = 4, limit = 7.0, unit_rows = 8>(x, ids, w, gate_up, down, "", "", dy)
})");
  for (Value* value : graph->ValuesWithRole(Role::kParameter)) value->parameter = std::make_unique<ParameterInfo>();
  return graph;
}

PassContext Apply(Pass&& pass, Graph& graph) {
  PassContext context;
  EXPECT_TRUE(pass.Run(graph, context));
  VerifyGraph(graph);
  return context;
}

std::string Body(const Graph& graph) {
  const std::string text = ToText(graph);
  return text.substr(text.find('{'));
}

TEST(StreamDispatch, OneRankStreamsChunks) {
  const auto graph = Layer();
  const PassContext context = Apply(StreamDispatch(StreamDispatchOptions{.chunk_tokens = 3, .max_chunks = 2}, 1), *graph);
  EXPECT_EQ(context.matches, 1);
  EXPECT_EQ(Body(*graph), R"({
  y, y.counts = PipelinedLlep<chunk_tokens = 3, experts = 5, leaves = 4, limit = 7.0, max_chunks = 2, unit_rows = 8>(x, ids, w, gate_up, down)
  phase backward
  dx, dw, dgate_up, ddown = PipelinedLlepGradient<chunk_tokens = 3, experts = 5, leaves = 4, limit = 7.0, max_chunks = 2, unit_rows = 8>(x, ids, w, gate_up, down, "", "", dy, "", "", "", "", y.counts)
}
)");
}

TEST(StreamDispatch, RanksShareLoadByTheOptions) {
  const auto graph = Layer();
  Apply(StreamDispatch(StreamDispatchOptions{.lambda = 1.5, .alpha = 1.25, .min_rows = 16, .max_foreign = 1}, 2), *graph);
  EXPECT_EQ(Body(*graph), R"({
  y, y.counts = PipelinedLlep<expert_parallel = 2, experts = 5, group = "expert", leaves = 4, limit = 7.0, llep_alpha = 1.25, llep_lambda = 1.5, max_foreign = 1, min_rows = 16, unit_rows = 8>(x, ids, w, gate_up, down)
  phase backward
  dx, dw, dgate_up, ddown = PipelinedLlepGradient<expert_parallel = 2, experts = 5, group = "expert", leaves = 4, limit = 7.0, llep_alpha = 1.25, llep_lambda = 1.5, max_foreign = 1, min_rows = 16, unit_rows = 8>(x, ids, w, gate_up, down, "", "", dy, "", "", "", "", y.counts)
}
)");
}

TEST(StreamDispatch, TheTwinOfManyRanksKeepsExpertsHome) {
  const auto graph = Layer();
  Apply(StreamDispatch(std::nullopt, 2), *graph);
  EXPECT_NE(Body(*graph).find("PipelinedLlep<expert_parallel = 2, experts = 5, group = \"expert\", leaves = 4, limit = 7.0, "
                              "unit_rows = 8>"),
            std::string::npos)
      << Body(*graph);
}

TEST(StreamDispatch, SaysSoWhenThereIsNothingToStream) {
  const auto graph = ParseText("graph (float[2] x) => (float[2] y)\n{ y = Neg(x) }");
  PassContext context;
  StreamDispatch pass(StreamDispatchOptions{}, 1);
  try {
    pass.Run(*graph, context);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupportedOp);
    EXPECT_NE(error.message().find("no mixture of experts was recognised"), std::string::npos);
  }
}

TEST(ShardExperts, ARankKeepsItsRunOfExperts) {
  for (const int64_t member : {0, 1}) {
    const auto graph = Layer();
    Apply(StreamDispatch(std::nullopt, 2), *graph);
    EXPECT_EQ(Apply(ShardExperts(2, member), *graph).matches, 1);
    const int64_t experts = member == 0 ? 3 : 2;
    for (const char* name : {"gate_up", "down"}) {
      const Value* weight = graph->FindValue(name);
      EXPECT_EQ(weight->shape[0].Constant(), experts);
      EXPECT_EQ(weight->parameter->shard->first, member == 0 ? 0 : 3);
      EXPECT_EQ(weight->parameter->shard->total, 5);
      EXPECT_EQ(weight->parameter->shared_by, "replica");
      EXPECT_EQ(graph->FindValue(std::string("d") + name)->shape[0].Constant(), experts);
    }
  }
}

TEST(ShardExperts, FrozenExpertsAreCutToo) {
  const auto graph = Layer();
  std::vector<float> values;
  for (int64_t i = 0; i < 5 * 24; ++i) values.push_back(static_cast<float>(i));
  Value* gate_up = graph->FindValue("gate_up");
  gate_up->role = Role::kConstant;
  gate_up->data = TensorData::FromFloats({5, 6, 4}, values);
  Apply(StreamDispatch(std::nullopt, 2), *graph);
  Apply(ShardExperts(2, 1), *graph);
  EXPECT_EQ(gate_up->data->AsFloats(), std::vector<float>(values.begin() + 3 * 24, values.end()));
}

TEST(ShardExperts, WeightsOfOtherUseAreRefused) {
  const auto graph = Layer();
  Apply(StreamDispatch(std::nullopt, 2), *graph);
  Value* norm = graph->AddValue("norm");
  InferNode(*graph->AddNode(GetOp("GradientNorm"), {graph->FindValue("down")}, {norm}));
  PassContext context;
  ShardExperts pass(2, 0);
  try {
    pass.Run(*graph, context);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("'down' is also read by GradientNorm"), std::string::npos) << error.message();
  }
}

}  // namespace
}  // namespace weir
