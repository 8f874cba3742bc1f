#include "graph_passes/stream_lm_head.h"

#include <gtest/gtest.h>

#include "graph/error.h"
#include "tests/graph_passes/golden.h"
#include "tests/graph_passes/training_harness.h"

namespace weir {
namespace {

TrainingOptions Strip(int64_t strip) {
  TrainingOptions options;
  options.strip = strip;
  return options;
}

// Before and after the pass, between build_gradient and the optimizer. w is tied: its one
// accumulator goes through the head first, as in the graph of separate nodes.
constexpr const char* kBefore =
    R"(graph tiny (int64[2,3] input_ids, int64[2,3] labels, float[] loss_scale) => (double[] loss)
parameter float[5,4] w
parameter float[4] g
gradient float[5,4] w.grad
gradient float[4] g.grad
constant float[] const = {1}
{
  phase begin
  a = ZeroFill(w.grad)
  b = ZeroFill(g.grad)
  phase forward
  h = Embedding(input_ids, w)
  n, r = RmsNorm(h, g)
  logits = Linear(n, w)
  loss, lse = CrossEntropy<ignore_index = -1>(logits, labels, loss_scale)
  phase backward
  dlogits = CrossEntropyGradient<ignore_index = -1>(logits, labels, lse, loss_scale, const)
  dn = MatMul(dlogits, w)
  a2 = LinearWeightGradient(n, dlogits, a)
  dh, b2 = RmsNormGradient(h, g, r, dn, b)
  a3 = EmbeddingGradient(input_ids, dh, a2)
}
)";

TEST(StreamLmHead, ReplacesTheTiedHead) {
  const auto graph = ParseText(kBefore);
  PassContext context;
  StreamLmHead pass(256);
  EXPECT_TRUE(pass.Run(*graph, context));
  VerifyGraph(*graph);
  EXPECT_EQ(context.matches, 1);
  EXPECT_EQ(
      ToText(*graph),
      R"(graph tiny (int64[2,3] input_ids, int64[2,3] labels, float[] loss_scale) => (double[] loss)
parameter float[5,4] w
parameter float[4] g
gradient float[5,4] w.grad
gradient float[4] g.grad
{
  phase begin
  a = ZeroFill(w.grad)
  b = ZeroFill(g.grad)
  phase forward
  h = Embedding(input_ids, w)
  n, r = RmsNorm(h, g)
  loss, dn, a2 = RingDtp<ignore_index = -1, strip = 256>(n, w, labels, loss_scale, a)
  phase backward
  dh, b2 = RmsNormGradient(h, g, r, dn, b)
  a3 = EmbeddingGradient(input_ids, dh, a2)
}
)");
}

constexpr const char* kHead =
    "graph (int64[batch,sequence] input_ids) => (float[batch,sequence,700] logits)\n"
    "constant float[3,2] table = {1, 2, 3, 4, 5, 6}\nparameter float[2,2] mix\nparameter "
    "float[700,2] w\n"
    "{ h = Embedding(input_ids, table) ";

std::string After(const std::string& text) {
  const auto graph = ParseText(text);
  PassManager passes;
  BuildTrainingGraph(*graph, Strip(256), passes);
  return ToText(*graph);
}

TEST(StreamLmHead, MakesNoGradientThatNobodyWants) {
  EXPECT_NE(After(std::string(kHead) + "m = Linear(h, mix) logits = Linear(m, w) }")
                .find("loss, m.grad, LinearWeightGradient = RingDtp<"),
            std::string::npos);
  EXPECT_NE(After(std::string(kHead) + "logits = Linear(h, w) }")
                .find("loss, \"\", LinearWeightGradient = RingDtp<"),
            std::string::npos);
  const std::string frozen =
      "graph (int64[batch,sequence] input_ids) => (float[batch,sequence,2] logits)\nparameter "
      "float[3,2] table\n"
      "constant float[2,2] w = {1, 2, 3, 4}\n{ h = Embedding(input_ids, table) logits = Linear(h, "
      "w) }";
  EXPECT_NE(After(frozen).find("loss, h.grad = RingDtp<"), std::string::npos) << After(frozen);
}

std::string Reason(const std::string& text, bool training = false) {
  try {
    const auto graph = ParseText(text);
    PassContext context;
    StreamLmHead pass(256);
    PassManager passes;
    training ? BuildTrainingGraph(*graph, Strip(256), passes)
             : static_cast<void>(pass.Run(*graph, context));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

std::string Edited(const std::string& from, const std::string& to) {
  std::string text = kBefore;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

#define EXPECT_REASON(text, why) EXPECT_NE(Reason text.find(why), std::string::npos) << Reason text

// VCE-05: a head with a bias is not streamed, nor spread, in words.
TEST(StreamLmHead, AskedForButUnmatchedIsAnErrorWithTheReason) {
  EXPECT_REASON((std::string(kHead) + "z = Linear(h, w) logits = Tanh(z) }", true),
                "are made by Tanh, expected Linear");
  EXPECT_REASON((Edited("Linear(n, w)", "Linear(n, w, float[5]{0, 0, 0, 0, 0})")),
                "the head has a bias");
  EXPECT_REASON((Edited("{1}", "{2}")), "is not the constant 1");
  EXPECT_REASON((Edited("dlogits = Cross", "extra = Abs(logits)\n  dlogits = Cross")),
                "'logits' have other users");
  EXPECT_REASON((Edited("dlogits = Cross", "extra = Abs(lse)\n  dlogits = Cross")),
                "'lse' has other users");
  EXPECT_REASON((Edited("a2 = Linear", "extra = Abs(dlogits)\n  a2 = Linear")),
                "is also used by Abs");
  EXPECT_REASON((Edited("MatMul(dlogits, w)", "MatMul(dlogits, w)\n  twice = MatMul(dlogits, w)")),
                "is also used by MatMul");
  EXPECT_REASON(
      (Edited("LinearWeightGradient(n, dlogits, a)", "LinearWeightGradient(h, dlogits, a)")),
      "is also used by LinearWeightGradient");
  EXPECT_REASON(
      (Edited(
          "a2 = LinearWeightGradient(n, dlogits, a)",
          "a1 = EmbeddingGradient(input_ids, n, a)\n  a2 = LinearWeightGradient(n, dlogits, a1)")),
      "'a1' gains from EmbeddingGradient before the head");
  EXPECT_REASON((std::string("graph (float[2] x) => (float[2] y)\n{ y = Abs(x) }")),
                "the graph has no CrossEntropy");
}

TEST(StreamLmHead, RefusesNegativeStrips) {
  const auto graph = ParseText(std::string(kHead) + "logits = Linear(h, w) }");
  PassManager passes;
  EXPECT_THROW(BuildTrainingGraph(*graph, Strip(-1), passes), Error);
}

std::string Decoder(int64_t vocabulary) {
  const std::string v = std::to_string(vocabulary);
  return "graph (int64[batch,sequence] input_ids) => (float[batch,sequence," + v +
         "] logits)\n"
         "parameter float[" +
         v +
         ",8] embed\nparameter float[8] gamma\nparameter float[8,8] mix\n"
         "{ h = Embedding(input_ids, embed) n = RmsNorm(h, gamma) m = Linear(n, mix) s = Add(h, "
         "m)\n"
         "  logits = Linear(s, embed) }";
}

// Weights of tokens are the last input, with an accumulator before them or without.
TEST(StreamLmHead, TakesWeightsOfTokens) {
  const auto replace = [](std::string text, const std::string& from, const std::string& to) {
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  std::string text = replace(kBefore, "float[] loss_scale)", "float[] loss_scale, float[2,3] token_weights)");
  text = replace(text, "labels, loss_scale)\n  phase", "labels, loss_scale, token_weights)\n  phase");
  const auto run = [](const std::string& before) {
    const auto graph = ParseText(before);
    PassContext context;
    StreamLmHead(256).Run(*graph, context);
    VerifyGraph(*graph);
    return ToText(*graph);
  };
  try {
    run(text);
    FAIL() << "the gradient has no weights";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("CrossEntropyGradient belongs to another loss"), std::string::npos) << error.message();
  }
  text = replace(text, "lse, loss_scale, const)", "lse, loss_scale, const, token_weights)");
  EXPECT_NE(run(text).find("= RingDtp<ignore_index = -1, strip = 256>(n, w, labels, loss_scale, a, token_weights)"), std::string::npos) << run(text);
}

// Tied, two micro-batches, ignored labels, two steps: every byte of every tensor is the same.
TEST(StreamLmHead, StepsHaveTheSameBits) {
  std::vector<std::vector<float>> results;
  std::vector<double> scalars;
  for (const int64_t strip : {0, 256, 1024}) {
    TrainingHarness training(Decoder(1500), 2, 37, Strip(strip));
    training.Write("embed", ToFloats(Draw(1500 * 8, 1)));
    training.Write("gamma", ToFloats(Draw(8, 2)));
    training.Write("mix", ToFloats(Draw(64, 3)));
    std::vector<int64_t> ids, labels;
    for (int64_t i = 0; i < 74; ++i)
      ids.push_back(i * 31 % 1500), labels.push_back(i % 9 == 0 ? -100 : i * 170 % 1500);
    for (int step = 1; step <= 2; ++step) {
      training.Step(ids, labels, 0.01, step);
      training.MicroBatch(ids, labels);  // joins the step's accumulators
      scalars.push_back(training.loss());
    }
    for (const char* name : {"embed", "gamma", "mix", "embed.grad", "embed.v"})
      results.push_back(training.Read<float>(name));
  }
  for (size_t i = 5; i < results.size(); ++i) EXPECT_EQ(results[i], results[i % 5]) << i;
  for (size_t i = 2; i < scalars.size(); ++i) EXPECT_EQ(scalars[i], scalars[i % 2]) << i;
}

// The ledger's strips: all logits of 1024 tokens against one strip and a few numbers per token.
// VCE-11
TEST(StreamLmHead, PlansOneStripOfLogits) {
  constexpr int64_t kLogits = 1024 * 5000 * 4;
  EXPECT_GE(TrainingHarness(Decoder(5000), 2, 512).plan.ledger.at("strips"), kLogits);
  const TrainingHarness streamed(Decoder(5000), 2, 512, Strip(256));
  const int64_t strips = streamed.plan.ledger.at("strips");
  EXPECT_GE(strips, 1024 * 256 * 4);
  EXPECT_LE(strips, 1024 * 256 * 4 + 1024 * 32 + 256 * 8 * 4 + 1024);
  for (const PlannedBuffer& buffer : streamed.plan.buffers)
    EXPECT_LT(buffer.bytes, kLogits / 2) << buffer.name;
  EXPECT_EQ(UnreadBuffers(streamed.plan), std::vector<std::string>{});
}

}  // namespace
}  // namespace weir
