#include "graph_passes/shard_context.h"

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/pipeline.h"
#include "graph_passes/token_wise.h"
#include "importer/importer.h"
#include "tests/graph_passes/golden.h"

namespace weir {
namespace {

const std::string kLayer = R"(graph (int64[batch,sequence] input_ids) => (float[batch,sequence,4,8] y)
parameter float[9,32] table
parameter float[4] sinks
constant int64[4] q_shape = {0, 0, 4, 8}
constant int64[4] kv_shape = {0, 0, 2, 8}
parameter float[16,32] narrow
{
  length = Shape<start = 1>(input_ids)
  cos, sin = RotaryTable<inv_freq = [1.0, 0.5]>(length)
  x = Embedding(input_ids, table)
  q = Reshape(x, q_shape)
  r = Rotary(q, cos, sin)
  n = Linear(x, narrow)
  k = Reshape(n, kv_shape)
  y = ai.weir::Attention<window = 3>(r, k, k, sinks)
})";

TEST(ShardContext, PutsExchangesAroundAttention) {
  const auto graph = ParseText(kLayer);
  PassContext context;
  EXPECT_TRUE(ShardContext(2, 1).Run(*graph, context));
  VerifyGraph(*graph);
  EXPECT_EQ(context.matches, 1);
  const std::string text = ToText(*graph);
  EXPECT_EQ(text.substr(text.find("  length")), R"(  length = Shape<start = 1>(input_ids)
  cos, sin = RotaryTable<inv_freq = [1.0, 0.5], part = 1>(length)
  x = Embedding(input_ids, table)
  q = Reshape(x, q_shape)
  r = Rotary(q, cos, sin)
  n = Linear(x, narrow)
  k = Reshape(n, kv_shape)
  r.heads = SequenceToHeads<group = "context", ranks = 2>(r)
  k.heads = SequenceToHeads<group = "context", ranks = 2>(k)
  sinks.held = Slice(sinks, const, const.2, const.3)
  y = ai.weir::Attention<window = 3>(r.heads, k.heads, k.heads, sinks.held)
  y.2 = HeadsToSequence<group = "context", heads = 4, ranks = 2>(y)
}
)");
  EXPECT_EQ(ToString(graph->FindValue("y")->shape), "[batch,2*sequence,2,8]");
  EXPECT_EQ(ToString(graph->FindValue("k.heads")->shape), "[batch,2*sequence,1,8]");
  EXPECT_EQ(ToString(graph->outputs[0]->shape), "[batch,sequence,4,8]");
  EXPECT_EQ(graph->FindValue("const")->data->AsInts(), std::vector<int64_t>{2});  // member 1 holds query heads 2 and 3
  EXPECT_EQ(graph->FindValue("const.2")->data->AsInts(), std::vector<int64_t>{4});
}

TEST(ShardContext, FourRanksShareTwoKvHeads) {
  const auto graph = ParseText(kLayer);
  PassContext context;
  ShardContext(4, 0).Run(*graph, context);
  VerifyGraph(*graph);
  EXPECT_EQ(ToString(graph->FindValue("k.heads")->shape), "[batch,4*sequence,1,8]");
  EXPECT_EQ(ToString(graph->FindValue("r.heads")->shape), "[batch,4*sequence,1,8]");
}

std::string ErrorOf(const std::string& text, int64_t ranks) {
  const auto graph = ParseText(text);
  try {
    PassContext context;
    ShardContext(ranks, 0).Run(*graph, context);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Ranks 4 and 5 hold query head 2 of kv head 1: of the rows this one the inner two of four runs.
TEST(ShardContext, TwoOfEightRanksHoldTheSameHeads) {
  const auto graph = ParseText(kLayer);
  PassContext context;
  EXPECT_TRUE(ShardContext(8, 5).Run(*graph, context));
  VerifyGraph(*graph);
  const std::string text = ToText(*graph);
  EXPECT_EQ(text.substr(text.find("  r.rows")), R"(  r.rows = SequenceToHeads<deal = 1, group = "context", ranks = 8, sharing = 2>(r)
  k.heads = SequenceToHeads<group = "context", ranks = 8, sharing = 2>(k)
  sinks.held = Slice(sinks, const, const.2, const.3)
  y = ai.weir::Attention<row_share = 1, row_shares = 2, window = 3>(r.rows, k.heads, k.heads, sinks.held)
  y.2 = HeadsToSequence<deal = 1, group = "context", heads = 4, ranks = 8, sharing = 2>(y)
}
)");
  EXPECT_EQ(ToString(graph->FindValue("r.rows")->shape), "[batch,4*sequence,1,8]");
  EXPECT_EQ(ToString(graph->FindValue("k.heads")->shape), "[batch,8*sequence,1,8]");
  EXPECT_EQ(ToString(graph->FindValue("y")->shape), "[batch,4*sequence,1,8]");
  EXPECT_EQ(ToString(graph->outputs[0]->shape), "[batch,sequence,4,8]");
  EXPECT_EQ(graph->FindValue("const")->data->AsInts(), std::vector<int64_t>{2});
  EXPECT_EQ(graph->FindValue("const.2")->data->AsInts(), std::vector<int64_t>{3});
}

// As few as can be share heads: of 3 all, of 6 three, of 12 three.
TEST(ShardContext, AsFewRanksAsCanBeShareHeads) {
  for (const auto& [ranks, query_heads, sequences] : {std::tuple{3, 4, 1}, {6, 2, 2}, {12, 1, 4}}) {
    const auto graph = ParseText(kLayer);
    PassContext context;
    ShardContext(ranks, ranks - 1).Run(*graph, context);
    VerifyGraph(*graph);
    const Shape& rows = graph->FindValue("r.rows")->shape;
    EXPECT_EQ(rows[1], sequences * Dim::Sequence()) << ranks;
    EXPECT_EQ(rows[2].Constant(), query_heads) << ranks;
    EXPECT_EQ(graph->FindValue("k.heads")->shape[1], ranks * Dim::Sequence()) << ranks;
  }
}

// One value as queries and keys: its rows and its whole.
TEST(ShardContext, QueriesMayBeTheKeys) {
  const auto graph = ParseText(R"(graph (float[batch,sequence,1,4] x) => (float[batch,sequence,1,4] y)
{
  z = Relu(x)
  y = ai.weir::Attention(z, z, z)
})");
  PassContext context;
  ShardContext(2, 0).Run(*graph, context);
  VerifyGraph(*graph);
  EXPECT_EQ(ToString(graph->FindValue("z.rows")->shape), "[batch,sequence,1,4]");
  EXPECT_EQ(ToString(graph->FindValue("z.heads")->shape), "[batch,2*sequence,1,4]");
}

TEST(ShardContext, NeedsAttention) {
  EXPECT_NE(ErrorOf(R"(graph (float[batch,sequence,4] x) => (float[batch,sequence,4] y)
{
  y = Relu(x)
})", 2).find("the graph has no Attention"), std::string::npos);
}

TEST(ShardContext, EqualPartsOfASequence) {
  const auto graph = ParseText(kLayer);
  EXPECT_EQ(SequenceUnit(*graph, 4), 4);
  EXPECT_EQ(SequenceUnit(*graph, 8), 16);
  EXPECT_EQ(SequenceUnit(*graph, 3), 6);
  EXPECT_EQ(SequenceOfRank(*graph, {.world = 4, .context_parallel = 2}, 24), 12);
  EXPECT_EQ(SequenceOfRank(*graph, {.world = 8, .context_parallel = 8}, 32), 4);
  const auto message = [&](int64_t ranks, int64_t sequence) {
    try {
      SequenceOfRank(*graph, {.world = ranks, .context_parallel = ranks}, sequence);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(message(4, 26).find("--sequence=26 cannot be cut into --context-parallel=4"), std::string::npos);
  EXPECT_NE(message(8, 24).find("use a multiple of 16: 16 or 32"), std::string::npos) << message(8, 24);
  EXPECT_NE(message(8, 8).find("use a multiple of 16: 16"), std::string::npos) << message(8, 8);
}

TEST(ShardContext, CannotBeSwitchedOff) {
  const auto graph = ReadOnnx(WEIR_SOURCE_DIR "/models/mixtral/hf18_batched_mm_eager.onnx");
  PassManager passes;
  Canonicalize(*graph, {}, passes);
  passes.disabled = {"shard_context"};
  TrainingOptions options;
  options.layout = {.world = 2, .context_parallel = 2};
  EXPECT_THROW(BuildTrainingGraph(*graph, options, passes), Error);
}

// What travels is half as wide in bfloat16, clones and gradients included.
TEST(ShardContext, ExchangesTravelInThePrecisionOfCompute) {
  auto graph = ReadOnnx(WEIR_SOURCE_DIR "/models/gpt_oss/hf18_batched_mm_eager.onnx");
  PassManager passes;
  Canonicalize(*graph, {}, passes);
  TrainingOptions options;
  options.layout = {.world = 2, .context_parallel = 2};
  options.precision = "bfloat16";
  options.recompute = "layer";
  BuildTrainingGraph(*graph, options, passes);
  int exchanges = 0;
  for (const auto& node : graph->nodes()) {
    if (node->op() != "SequenceToHeads" && node->op() != "HeadsToSequence") continue;
    ++exchanges;
    EXPECT_EQ(node->in(0)->dtype, DType::kBFloat16) << node->in(0)->name;
    EXPECT_EQ(node->out()->dtype, DType::kBFloat16) << node->out()->name;
  }
  EXPECT_EQ(exchanges, 2 * (4 + 4 + 4));  // layers: forward, again, backward
}

struct Mixing {
  const char *name, *body, *why;
};
void PrintTo(const Mixing& one, std::ostream* out) { *out << one.name; }

class MixedPositionsIn : public testing::TestWithParam<Mixing> {};

TEST_P(MixedPositionsIn, AreFound) {
  const std::string text = StrCat(R"(graph (float[batch,sequence,4] x, int64[batch,sequence] ids) => (float[batch,sequence,4] unused)
parameter float[64,4] table
constant int64[1] first = {0}
constant int64[1] one = {1}
constant int64[] zero = {0}
constant int64[] step = {1}
constant int64[6] padding = {0, 1, 0, 0, 0, 0}
constant int64[3] halves = {0, 2, -1}
constant float[] scale = {2}
{
  unused = Relu(x)
  launch = Shape<start = 1, end = 2>(ids)
  )", GetParam().body, "\n}");
  const std::string problems = MixedPositions(*ParseText(text));
  EXPECT_NE(problems.find(GetParam().why), std::string::npos) << problems;
  EXPECT_EQ(std::string(GetParam().why).empty(), problems.empty()) << problems;
}

INSTANTIATE_TEST_SUITE_P(
    Ops, MixedPositionsIn,
    testing::Values(Mixing{"tokens_alone", "y = Mul(x, scale)\n z = Softmax(y)\n w = ReduceSum<axes = [2]>(z)", ""},
                    Mixing{"embedding_of_positions", "end = Squeeze(launch, first)\n p = Range(zero, end, step)\n y = Gather(table, p)\n z = Add(x, y)",
                           "Range 'p': it computes with the length of the sequence"},
                    Mixing{"stored_table", "y = Slice(table, first, launch, first)\n z = Add(x, y)", "Slice 'y': it computes with the length of the sequence"},
                    Mixing{"cumulative_sum", "y = CumSum(x, one)", "CumSum 'y': it works along the sequence"},
                    Mixing{"sum_of_tokens", "y = ReduceSum<axes = [1]>(x)", "ReduceSum 'y': it works along the sequence"},
                    Mixing{"sum_of_all", "y = ReduceMean(x)", "ReduceMean 'y': it works along all axes"},
                    Mixing{"softmax_over_tokens", "y = Softmax<axis = 1>(x)", "Softmax 'y': it works along the sequence"},
                    Mixing{"choice_of_tokens", "v, i = TopK<axis = 1>(x, one)", "TopK 'v': it works along the sequence"},
                    Mixing{"scores", "t = Transpose<perm = [0, 2, 1]>(x)\n y = MatMul(x, t)", "in several axes"},
                    Mixing{"sum_by_matmul", "t = Transpose<perm = [0, 2, 1]>(x)\n y = MatMul(t, x)", "multiplies positions with each other"},
                    Mixing{"pairs_of_tokens", "y = Reshape(x, halves)", "Reshape 'y': it reorders the sequence"},
                    Mixing{"shifted_tokens", "y = Pad(x, padding)", "Pad 'y': it is not known to treat positions alike"},
                    Mixing{"length_as_a_value", "f = Cast<to = 1>(launch)\n y = Mul(x, f)", "Cast 'f': it computes with the length of the sequence"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace weir
