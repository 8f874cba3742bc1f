#include "graph_passes/shard_vocabulary.h"

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/pipeline.h"
#include "tests/graph_passes/golden.h"

namespace weir {
namespace {

std::unique_ptr<Graph> HeadGraph(const std::string& weight = "parameter float[307,4] w") {
  auto graph = ParseText("graph tiny (float[6,4] x, int64[6] labels, float[] loss_scale) => (double[] loss)\n" + weight + R"(
gradient float[307,4] w.grad
{
  phase begin
  a = ZeroFill(w.grad)
  phase forward
  loss, dx, a2 = RingDtp<strip = 64, vocab_leaf = 64>(x, w, labels, loss_scale, a)
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

TEST(ShardVocabulary, ARankKeepsItsRunOfLeaves) {
  const auto graph = HeadGraph();
  EXPECT_EQ(Apply(ShardVocabulary({.ranks = 2, .member = 1, .leaf = 64}), *graph).matches, 1);
  EXPECT_EQ(ToText(*graph), R"(graph tiny (float[6,4] x, int64[6] labels, float[] loss_scale) => (double[] loss)
parameter float[115,4] w
gradient float[307,4] w.grad
{
  phase begin
  a = ZeroFill(w.grad)
  phase forward
  loss, dx, a2 = RingDtp<group = "vocabulary", strip = 64, vocab_leaf = 64, vocab_parallel = 2, vocabulary = 307>(x, w, labels, loss_scale, a)
}
)");
  const ParameterInfo& info = *graph->FindValue("w")->parameter;
  EXPECT_EQ(info.shard->first, 192);
  EXPECT_EQ(info.shard->total, 307);
  EXPECT_EQ(info.shared_by, "vocabulary_replica");
}

// Five leaves over 4 and 7 ranks: runs that meet, the first ones longer, empty ones at the end.
TEST(ShardVocabulary, SharesCoverTheVocabulary) {
  for (const int64_t ranks : {2, 4, 7}) {
    int64_t next = 0;
    for (int64_t member = 0; member < ranks; ++member) {
      const auto graph = HeadGraph();
      Apply(ShardVocabulary({.ranks = ranks, .member = member, .leaf = 64}), *graph);
      const Value* w = graph->FindValue("w");
      EXPECT_EQ(w->parameter->shard->first, next) << member;
      next += w->shape[0].Constant();
      EXPECT_TRUE(next % 64 == 0 || next == 307) << next;
    }
    EXPECT_EQ(next, 307) << ranks;
  }
}

TEST(ShardVocabulary, AFrozenHeadIsCutToo) {
  std::vector<float> values;
  for (int64_t i = 0; i < 307 * 4; ++i) values.push_back(static_cast<float>(i));
  const auto graph = HeadGraph();
  Value* w = graph->FindValue("w");
  w->role = Role::kConstant;
  w->parameter = nullptr;
  w->data = TensorData::FromFloats({307, 4}, values);
  Apply(ShardVocabulary({.ranks = 4, .member = 1, .leaf = 64}), *graph);
  EXPECT_EQ(w->data->AsFloats(), std::vector<float>(values.begin() + 128 * 4, values.begin() + 192 * 4));
}

std::unique_ptr<Graph> TiedGraph(const std::string& op) {
  auto graph = HeadGraph();
  Value *ids = graph->AddInput("ids", DType::kInt64, {6}), *h = graph->AddValue("h");
  const bool embedding = op == "Embedding";
  InferNode(*graph->AddNode(GetOp(op, embedding ? "ai.weir" : ""), {embedding ? ids : graph->FindValue("w"), graph->FindValue("w")}, {h}));
  return graph;
}

TEST(ShardVocabulary, ATiedEmbeddingGathersTheTable) {
  const auto graph = TiedGraph("Embedding");
  Apply(ShardVocabulary({.ranks = 2, .member = 1, .leaf = 64}), *graph);
  const std::string text = ToText(*graph);
  EXPECT_NE(text.find("parameter float[115,4] w\n"), std::string::npos) << text;
  EXPECT_NE(text.find("w.whole = AllGatherRows<group = \"vocabulary\", ranks = 2, rows = 307, unit = 64>(w)"), std::string::npos) << text;
  EXPECT_NE(text.find("h = Embedding(ids, w.whole)"), std::string::npos) << text;
}

TEST(ShardVocabulary, WhatElseReadsTheWeightIsRefused) {
  const auto refusal = [](const std::string& op, bool shard) -> std::string {
    const auto graph = TiedGraph(op);
    PassContext context;
    ShardVocabulary pass({.ranks = 2, .member = 0, .leaf = 64, .shard_gradient = shard});
    try {
      pass.Run(*graph, context);
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  EXPECT_NE(refusal("Add", false).find("head weight 'w' is also read by Add, so it cannot be spread over ranks; use --vocab-parallel=1"), std::string::npos);
  EXPECT_NE(refusal("Embedding", true).find("is the embedding's too (tied)"), std::string::npos);
  EXPECT_NE(refusal("Embedding", true).find("use --head-gradient=whole"), std::string::npos);
}

constexpr const char* kModel = R"(graph (int64[batch,sequence] input_ids) => (float[batch,sequence,307] logits)
parameter float[307,4] table
parameter float[307,4] w
{
  h = Embedding(input_ids, table)
  logits = Linear(h, w)
})";

std::string Training(const TrainingOptions& options) {
  const auto graph = ParseText(kModel);
  PassManager passes;
  BuildTrainingGraph(*graph, options, passes);
  return ToText(*graph);
}

// The whole gradient is summed over all ranks and measured; the update takes this rank's rows of it.
TEST(ShardVocabulary, TheUpdateTakesTheShardOfTheWholeSum) {
  TrainingOptions options;
  options.layout = {.world = 4, .vocabulary_parallel = 2};
  options.rank = 3;
  options.vocab_leaf = 64;
  const std::string text = Training(options);
  const auto has = [&](const std::string& line) { return text.find(line) != std::string::npos; };
  EXPECT_TRUE(has("parameter float[115,4] w\n")) << text;
  EXPECT_TRUE(has("gradient float[307,4] w.grad\n")) << text;
  EXPECT_TRUE(has("state float[115,4] w.m\n")) << text;
  EXPECT_TRUE(has("strip = 8192, vocab_leaf = 64, vocab_parallel = 2, vocabulary = 307>")) << text;
  EXPECT_TRUE(has("w.grad.sum = TreeReduceGradient<group = \"world\", ranks = 4>(")) << text;
  EXPECT_TRUE(has("GradientNorm(")) << text;
  EXPECT_FALSE(has("sharded")) << text;
  EXPECT_TRUE(has("= Slice(w.grad.sum, ")) << text;
}

// With its gradient in shards: summed over the other groups, measured by the squares of all shards.
TEST(ShardVocabulary, TheGradientIsAShardToo) {
  TrainingOptions options;
  options.layout = {.world = 4, .vocabulary_parallel = 2};
  options.rank = 3;
  options.vocab_leaf = 64;
  options.head_gradient = "shard";
  const std::string text = Training(options);
  const auto has = [&](const std::string& line) { return text.find(line) != std::string::npos; };
  EXPECT_TRUE(has("gradient float[115,4] w.grad\n")) << text;
  EXPECT_TRUE(has("shard_gradient = 1, strip = 8192")) << text;
  EXPECT_TRUE(has("w.grad.sum = TreeReduceGradient<group = \"vocabulary_replica\", ranks = 2>(")) << text;
  EXPECT_TRUE(has("w.grad.squares = BlockSquares<elements = [768, 460], group = \"vocabulary\", whole = 1>(w.grad.sum)")) << text;
  EXPECT_TRUE(has("w.grad.squares)\n") || has("w.grad.squares, ")) << text;
  EXPECT_FALSE(has("Slice(")) << text;
}

// Tokens travel where they may; in bfloat16 shares are cut where no column's sum is.
TEST(ShardVocabulary, TokensTravelWhereNoWholeGradientWould) {
  TrainingOptions options;
  options.layout = {.world = 4, .vocabulary_parallel = 2};
  options.head_gradient = "shard";
  for (const char* move : {"activations", "auto"}) {
    options.move = move;
    options.vocab_leaf = 64;
    options.precision = "float32";
    EXPECT_NE(Training(options).find(StrCat("move = \"", move, "\", shard_gradient = 1, strip = 8192, vocab_leaf = 64")), std::string::npos)
        << Training(options);
    options.vocab_leaf = 2048;
    options.precision = "bfloat16";
    EXPECT_NE(Training(options).find(StrCat("move = \"", move, "\", shard_gradient = 1, share_columns = 8192")), std::string::npos);
  }
  options.head_gradient = "whole";  // the weight travels
  EXPECT_EQ(Training(options).find("move = "), std::string::npos);
  EXPECT_EQ(Training(options).find("share_columns"), std::string::npos);
}

// One accumulator of the whole for both uses; in bfloat16 the rounded rows are gathered.
TEST(ShardVocabulary, ATiedTableTrainsInBothPrecisions) {
  for (const char* precision : {"float32", "bfloat16"}) {
    const auto graph = ParseText(R"(graph (int64[batch,sequence] input_ids) => (float[batch,sequence,307] logits)
parameter float[307,4] w
{
  h = Embedding(input_ids, w)
  logits = Linear(h, w)
})");
    TrainingOptions options;
    options.layout = {.world = 4, .vocabulary_parallel = 2};
    options.vocab_leaf = 64;
    options.precision = precision;
    PassManager passes;
    BuildTrainingGraph(*graph, options, passes);
    VerifyGraph(*graph);
    const std::string text = ToText(*graph);
    const bool narrow = std::string(precision) == "bfloat16";
    EXPECT_NE(text.find(StrCat("parameter ", narrow ? "bfloat16" : "float", "[192,4] w\n")), std::string::npos) << text;
    EXPECT_NE(text.find("gradient float[307,4] w.grad\n"), std::string::npos) << text;
    EXPECT_NE(text.find("state float[192,4] w.m\n"), std::string::npos) << text;
    EXPECT_NE(text.find("AllGatherRows<group = \"vocabulary\", ranks = 2, rows = 307, unit = 64>(w)"), std::string::npos) << text;
  }
}

std::string Refusal(const TrainingOptions& options) {
  try {
    Training(options);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

TEST(ShardVocabulary, WrongOptionsAreRefusedInWords) {
  TrainingOptions options;
  options.vocab_leaf = 64;
  EXPECT_NE(Refusal(options).find("--vocab-leaf=64 is kept by the streamed head alone; add --strip"), std::string::npos);
  options.strip = 128;
  EXPECT_EQ(Refusal(options), "");
  options.vocab_leaf = 0;
  EXPECT_NE(Refusal(options).find("--vocab-leaf=0 must be positive"), std::string::npos);
  options.vocab_leaf = 300;
  EXPECT_NE(Refusal(options).find("C5: vocab_leaf is 300"), std::string::npos);
  options = {};
  options.head_gradient = "shard";
  EXPECT_NE(Refusal(options).find("--head-gradient=shard has no effect without --vocab-parallel"), std::string::npos);
  options.layout = {.world = 6, .vocabulary_parallel = 2};
  EXPECT_NE(Refusal(options).find("3 vocabulary groups add in another order"), std::string::npos);
  options.layout = {.world = 4, .vocabulary_parallel = 2};
  options.head_gradient = "whole";
  options.move = "activations";
  EXPECT_NE(Refusal(options).find("--move=activations: parts of 'w's gradient would come back to every rank, 2456 bytes"), std::string::npos) << Refusal(options);
  options.move = "tokens";
  EXPECT_NE(Refusal(options).find("--move=tokens is unknown; use weights, activations or auto"), std::string::npos);
  options = {};
  options.move = "activations";
  EXPECT_NE(Refusal(options).find("--move=activations has no effect without --vocab-parallel"), std::string::npos);
  options.move = "auto";
  EXPECT_EQ(Refusal(options), "");
  options.move = "weights";
  options.head_gradient = "some";
  EXPECT_NE(Refusal(options).find("--head-gradient=some is unknown"), std::string::npos);
  options = {};
  options.layout = {.world = 4, .vocabulary_parallel = 3};
  EXPECT_NE(Refusal(options).find("--vocab-parallel=3 does not divide"), std::string::npos);
}

}  // namespace
}  // namespace weir
