#include "graph_passes/strip_inference.h"

#include "graph/error.h"
#include "graph_passes/bypass_last_token.h"
#include "tests/graph_passes/equivalence.h"
#include "tests/graph_passes/golden.h"

namespace weir {
namespace {

std::string Stripped(const Graph& graph) {
  std::string words;
  for (const std::string& line : graph.stripped) words += line + "\n";
  return words;
}

TEST(StripInference, FeedsWhatTrainingMeans) {
  const auto graph = ParseText(
      "graph g (int64[batch,sequence] input_ids, int64[batch,sequence] attention_mask, "
      "int64[batch,sequence] position_ids, float[batch,2,0,8] past_key_values.0.key, "
      "float[batch,2,sequence,8] k) "
      "=> (float[batch,2,sequence,8] logits, float[batch,2,sequence,8] present.0.key)\n"
      "{\n  present.0.key = Concat<axis = 2>(past_key_values.0.key, k)\n"
      "  s = Add(attention_mask, position_ids)\n  f = Cast<to = 1>(s)\n  u = Unsqueeze(f, "
      "int64[2]{1, 3})\n"
      "  logits = Add(present.0.key, u)\n}\n");
  StripInference pass;
  PassContext context;
  // An input that nobody knows is an error that names it.
  EXPECT_THROW(pass.Run(*Clone(*graph), context), Error);
  graph->Rename(graph->FindValue("k"), "past.k");  // stands for activations here
  EXPECT_TRUE(pass.Run(*graph, context));
  VerifyGraph(*graph);
  ASSERT_EQ(graph->inputs.size(), 1u);
  ASSERT_EQ(graph->outputs.size(), 1u);
  CleanForTest(*graph, false);
  const auto result = Outputs(*graph, 2, 3, 1);
  // ones + positions, and no past before k
  for (size_t i = 0; i < result.size(); ++i)
    EXPECT_EQ(result[i], 1 + static_cast<double>(i / 8 % 3));
  EXPECT_NE(Stripped(*graph).find("position"), std::string::npos);
  EXPECT_NE(Stripped(*graph).find("present.0.key"), std::string::npos);
}

const char* const kLossHead =
    "graph g (int64[batch,sequence] input_ids, int64[batch,sequence] labels, float[8,7] w) "
    "=> (float[batch,sequence,7] logits, float[] loss)\n"
    "{\n  e = Gather(w, input_ids)\n  logits = Mul(e, float[]{2})\n";

std::string LossOf(const std::string& body) {
  const auto graph = ReadGolden(std::string(kLossHead) + body + "}\n");
  Value* w = graph->FindValue("w");
  graph->Rename(w, "past_w");  // a weight stand-in that the pass may drop
  StripInference pass;
  PassContext context;
  pass.Run(*graph, context);
  return Stripped(*graph) + (graph->notices.empty() ? "" : "NOTICE " + graph->notices[0]);
}

TEST(StripInference, ProvesTheLossItDrops) {
  const std::string flat = "  l = Reshape(logits, int64[2]{-1, 7})\n";
  EXPECT_NE(LossOf(flat + "  t = Reshape(labels, int64[1]{-1})\n  loss = "
                          "SoftmaxCrossEntropyLoss<ignore_index = -100>(l, t)\n")
                .find("labels already next-token"),
            std::string::npos);
  EXPECT_NE(LossOf(flat + "  p = Pad(labels, int64[4]{0, 0, 0, 1}, int64[]{-100})\n"
                          "  c = Slice(p, int64[1]{1}, int64[1]{99999}, int64[1]{1})\n  t = "
                          "Reshape(c, int64[1]{-1})\n"
                          "  loss = SoftmaxCrossEntropyLoss<ignore_index = -100>(l, t)\n")
                .find("padded and shifted by one"),
            std::string::npos);
}

TEST(StripInference, NoticesAnotherLoss) {
  const std::string text = LossOf(
      "  l = Reshape(logits, int64[2]{-1, 7})\n  t = Reshape(labels, int64[1]{-1})\n"
      "  loss = SoftmaxCrossEntropyLoss<reduction = \"sum\">(l, t)\n");
  EXPECT_NE(text.find("NOTICE output 'loss' is not a plain mean cross-entropy"), std::string::npos)
      << text;
}

TEST(StripInference, AnInputIsNoResult) {
  const auto graph = ParseText(
      "graph g (int64[batch,sequence] input_ids, int64[batch,sequence] position_ids) "
      "=> (int64[batch,sequence] position_ids)\n{\n}\n");
  StripInference pass;
  PassContext context;
  try {
    pass.Run(*graph, context);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidModel);
    EXPECT_NE(error.message().find("'position_ids' is not computed"), std::string::npos) << error.what();
  }
}

TEST(StripInference, AScalarHoldsNoPositions) {
  const auto graph = ParseText(
      "graph g (int64[batch,sequence] input_ids, int64[] position_ids) => (int64[batch,sequence] logits)\n"
      "{\n  logits = Add(input_ids, position_ids)\n}\n");
  StripInference pass;
  PassContext context;
  EXPECT_THROW(pass.Run(*graph, context), Error);
}

TEST(StripInference, FixedShapesAreRefused) {
  const auto graph = ParseText(
      "graph g (int64[1,128] input_ids) => (float[1,128] y)\n{\n  y = Cast<to = "
      "1>(input_ids)\n}\n");
  StripInference pass;
  PassContext context;
  EXPECT_THROW(pass.Run(*graph, context), Error);
}

TEST(BypassLastToken, HeadSeesEveryToken) {
  const std::string head = "graph g (int64[batch,sequence] ids, float[batch,sequence,4] h) => ";
  const std::string w = "\nparameter float[7,4] w\n{\n";
  for (const std::string select : {"  l = Gather<axis = 1>(h, int64[]{-1})\n  u = Unsqueeze(l, "
                                   "int64[1]{1})\n  y = Linear(u, w)\n}\n",
                                   "  l = Slice(h, int64[1]{-1}, int64[1]{9223372036854775807}, "
                                   "int64[1]{1})\n  y = Linear(l, w)\n}\n"}) {
    const auto graph = ReadGolden(head + "(float[batch,1,7] y)" + w + select);
    BypassLastToken pass;
    PassContext context;
    EXPECT_TRUE(pass.Run(*graph, context));
    CleanForTest(*graph, false);
    EXPECT_EQ(ToString(graph->outputs[0]->shape), "[batch,sequence,7]");
    EXPECT_EQ(graph->nodes().size(), 1u);
  }
}

TEST(BypassLastToken, OtherSelectionsStay) {
  const std::string text =
      "graph g (int64[batch,sequence] ids, float[batch,sequence,4] h) => (float[batch,7] y)\n"
      "parameter float[7,4] w\n{\n  l = Gather<axis = 1>(h, int64[]{0})\n  y = Linear(l, w)\n}\n";
  BypassLastToken pass;
  ExpectPass(pass, text, text);
}

}  // namespace
}  // namespace weir
