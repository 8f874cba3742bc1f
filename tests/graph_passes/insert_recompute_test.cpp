#include "graph_passes/insert_recompute.h"

#include <gtest/gtest.h>

#include "graph/error.h"
#include "graph_passes/layer_regions.h"
#include "tests/graph_passes/golden.h"
#include "tests/graph_passes/training_harness.h"

namespace weir {
namespace {

TrainingOptions Recomputed(const std::string& keep = "none") {
  TrainingOptions options;
  options.recompute = "layer";
  options.keep = keep;
  return options;
}

// One layer: attention, then a routed branch. Heads of 2, TopK of 1.
constexpr const char* kLayer =
    "graph tiny (int64[batch,sequence] input_ids) => (float[batch,sequence,5] logits)\n"
    "parameter float[5,4] embed\nparameter float[4] g1\nparameter float[4,4] wv\nparameter float[4] g2\n"
    "parameter float[3,4] gate\nparameter float[5,4] head\n"
    "{\n"
    "  h = Embedding(input_ids, embed)\n"
    "  n = RmsNorm(h, g1)\n"
    "  v = Linear(n, wv)\n"
    "  heads = Reshape(v, int64[4]{0, 0, 2, 2})\n"
    "  attended = ai.weir::Attention<scale = 0.5>(heads, heads, heads)\n"
    "  flat = Reshape(attended, int64[3]{0, 0, 4})\n"
    "  middle = Add(h, flat)\n"
    "  m = RmsNorm(middle, g2)\n"
    "  scores = Linear(m, gate)\n"
    "  top, ids = TopK<axis = 2>(scores, int64[1]{1})\n"
    "  routed = Mul(m, top)\n"
    "  end = Add(middle, routed)\n"
    "  logits = Linear(end, head)\n"
    "}";

std::string BackwardOf(const Graph& graph) {
  const std::string text = ToText(graph);
  const size_t begin = text.find("  phase backward\n"), end = text.find("  phase norm\n");
  return text.substr(begin, end - begin);
}

// The router's choice is kept, its value picked again; nothing but the boundary h and ids is read from
// the forward.
TEST(InsertRecompute, ReadsAsText) {
  const auto graph = ParseText(kLayer);
  PassManager passes;
  BuildTrainingGraph(*graph, Recomputed(), passes);
  EXPECT_EQ(BackwardOf(*graph), R"(  phase backward
  logits.grad = CrossEntropyGradient<ignore_index = -100>(logits, labels, loss.lse, loss_scale, const)
  end.grad = MatMul(logits.grad, head)
  LinearWeightGradient = LinearWeightGradient(end, logits.grad, ZeroFill.6)
  n.recomputed, n.rstd.recomputed = RmsNorm(h, g1)
  v.recomputed = Linear(n.recomputed, wv)
  heads.recomputed = Reshape(v.recomputed, constant)
  attended.recomputed, attended.lse.recomputed = ai.weir::Attention<scale = 0.5>(heads.recomputed, heads.recomputed, heads.recomputed)
  flat.recomputed = Reshape(attended.recomputed, constant.2)
  middle.recomputed = Add(h, flat.recomputed)
  m.recomputed, m.rstd.recomputed = RmsNorm(middle.recomputed, g2)
  scores.recomputed = Linear(m.recomputed, gate)
  top.recomputed = GatherElements<axis = 2>(scores.recomputed, ids)
  Mul = Mul(end.grad, top.recomputed)
  Mul.2 = Mul(end.grad, m.recomputed)
  top.grad = ReduceSum<keepdims = 1>(Mul.2, const.2)
  Shape = Shape(scores)
  scores.grad = GatherElementsGradient<axis = 2>(top.grad, ids, Shape)
  MatMul = MatMul(scores.grad, gate)
  m.grad = Add(Mul, MatMul)
  LinearWeightGradient.2 = LinearWeightGradient(m.recomputed, scores.grad, ZeroFill.5)
  RmsNormGradient, RmsNormGradient.2 = RmsNormGradient(middle.recomputed, g2, m.rstd.recomputed, m.grad, ZeroFill.4)
  middle.grad = Add(end.grad, RmsNormGradient)
  Shape.2 = Shape(attended)
  attended.grad = Reshape<allowzero = 1>(middle.grad, Shape.2)
  AttentionGradient, AttentionGradient.2, AttentionGradient.3 = AttentionGradient<scale = 0.5>(heads.recomputed, heads.recomputed, heads.recomputed, attended.recomputed, attended.lse.recomputed, attended.grad)
  Add = Add(AttentionGradient, AttentionGradient.2)
  heads.grad = Add(Add, AttentionGradient.3)
  Shape.3 = Shape(v)
  v.grad = Reshape<allowzero = 1>(heads.grad, Shape.3)
  n.grad = MatMul(v.grad, wv)
  LinearWeightGradient.3 = LinearWeightGradient(n.recomputed, v.grad, ZeroFill.3)
  RmsNormGradient.3, RmsNormGradient.4 = RmsNormGradient(h, g1, n.rstd.recomputed, n.grad, ZeroFill.2)
  h.grad = Add(middle.grad, RmsNormGradient.3)
  EmbeddingGradient = EmbeddingGradient(input_ids, h.grad, ZeroFill)
)");
}

TEST(InsertRecompute, KeepsWhatAttentionMade) {
  const auto graph = ParseText(kLayer);
  PassManager passes;
  BuildTrainingGraph(*graph, Recomputed("attention"), passes);
  EXPECT_EQ(BackwardOf(*graph), R"(  phase backward
  logits.grad = CrossEntropyGradient<ignore_index = -100>(logits, labels, loss.lse, loss_scale, const)
  end.grad = MatMul(logits.grad, head)
  LinearWeightGradient = LinearWeightGradient(end, logits.grad, ZeroFill.6)
  flat.recomputed = Reshape(attended, constant.2)
  middle.recomputed = Add(h, flat.recomputed)
  m.recomputed, m.rstd.recomputed = RmsNorm(middle.recomputed, g2)
  scores.recomputed = Linear(m.recomputed, gate)
  top.recomputed = GatherElements<axis = 2>(scores.recomputed, ids)
  Mul = Mul(end.grad, top.recomputed)
  Mul.2 = Mul(end.grad, m.recomputed)
  top.grad = ReduceSum<keepdims = 1>(Mul.2, const.2)
  Shape = Shape(scores)
  scores.grad = GatherElementsGradient<axis = 2>(top.grad, ids, Shape)
  MatMul = MatMul(scores.grad, gate)
  m.grad = Add(Mul, MatMul)
  LinearWeightGradient.2 = LinearWeightGradient(m.recomputed, scores.grad, ZeroFill.5)
  RmsNormGradient, RmsNormGradient.2 = RmsNormGradient(middle.recomputed, g2, m.rstd.recomputed, m.grad, ZeroFill.4)
  middle.grad = Add(end.grad, RmsNormGradient)
  Shape.2 = Shape(attended)
  attended.grad = Reshape<allowzero = 1>(middle.grad, Shape.2)
  n.recomputed, n.rstd.recomputed = RmsNorm(h, g1)
  v.recomputed = Linear(n.recomputed, wv)
  heads.recomputed = Reshape(v.recomputed, constant)
  AttentionGradient, AttentionGradient.2, AttentionGradient.3 = AttentionGradient<scale = 0.5>(heads.recomputed, heads.recomputed, heads.recomputed, attended, attended.lse, attended.grad)
  Add = Add(AttentionGradient, AttentionGradient.2)
  heads.grad = Add(Add, AttentionGradient.3)
  Shape.3 = Shape(v)
  v.grad = Reshape<allowzero = 1>(heads.grad, Shape.3)
  n.grad = MatMul(v.grad, wv)
  LinearWeightGradient.3 = LinearWeightGradient(n.recomputed, v.grad, ZeroFill.3)
  RmsNormGradient.3, RmsNormGradient.4 = RmsNormGradient(h, g1, n.rstd.recomputed, n.grad, ZeroFill.2)
  h.grad = Add(middle.grad, RmsNormGradient.3)
  EmbeddingGradient = EmbeddingGradient(input_ids, h.grad, ZeroFill)
)");
}

std::string Stack(int layers, bool attention) {
  std::string text =
      "graph (int64[batch,sequence] input_ids) => (float[batch,sequence,50] logits)\n"
      "parameter float[50,8] embed\nparameter float[8] g\nparameter float[8,8] w\n{ h0 = Embedding(input_ids, embed)\n";
  for (int l = 0; l < layers; ++l) {
    const std::string i = std::to_string(l), next = std::to_string(l + 1);
    text += "n" + i + " = RmsNorm(h" + i + ", g)\n";
    if (attention) {
      text += "q" + i + " = Reshape(n" + i + ", int64[4]{0, 0, 2, 4})\na" + i + " = ai.weir::Attention<scale = 0.5>(q" + i + ", q" + i +
              ", q" + i + ")\nf" + i + " = Reshape(a" + i + ", int64[3]{0, 0, 8})\nm" + i + " = Add(h" + i + ", f" + i + ")\n";
    } else {
      text += "m" + i + " = Add(h" + i + ", n" + i + ")\n";
    }
    text += "x" + i + " = Linear(m" + i + ", w)\nt" + i + " = Tanh(x" + i + ")\nh" + next + " = Add(m" + i + ", t" + i + ")\n";
  }
  return text + "last = RmsNorm(h" + std::to_string(layers) + ", g)\nlogits = Linear(last, embed) }";
}

LayerSearch Search(const std::string& text, std::unique_ptr<Graph>& graph) {
  graph = ParseText(text);
  PassManager passes;
  BuildTrainingGraph(*graph, {}, passes);
  return FindLayers(*graph);
}

TEST(FindLayers, EndsLayersAtTheSumBeforeTheNextAttention) {
  std::unique_ptr<Graph> graph;
  const LayerSearch search = Search(Stack(3, true), graph);
  ASSERT_EQ(search.layers.size(), 3u);
  for (size_t l = 0; l < 3; ++l) {
    EXPECT_EQ(search.layers[l].input->name, "h" + std::to_string(l));
    EXPECT_EQ(search.layers[l].output->name, "h" + std::to_string(l + 1));
    EXPECT_EQ(search.layers[l].nodes.size(), 8u);
  }
}

TEST(FindLayers, WithoutAttentionEverySumEndsALayer) {
  std::unique_ptr<Graph> graph;
  const LayerSearch search = Search(Stack(2, false), graph);
  std::vector<std::string> ends;
  for (const LayerRegion& layer : search.layers) ends.push_back(layer.output->name);
  EXPECT_EQ(ends, (std::vector<std::string>{"m0", "h1", "m1", "h2"}));
}

// A value that skips layers (as shared keys would) makes what it skips one layer.
TEST(FindLayers, NoBoundaryIsJumpedOver) {
  std::string text = Stack(3, true);
  const size_t at = text.find("t2 = Tanh(x2)");
  text.replace(at, 13, "s2 = Add(x2, x0) t2 = Tanh(s2)");
  std::unique_ptr<Graph> graph;
  const LayerSearch search = Search(text, graph);
  ASSERT_EQ(search.layers.size(), 2u);
  EXPECT_EQ(search.layers[0].output->name, "m0");
  EXPECT_EQ(search.layers[1].input->name, "m0");
  EXPECT_EQ(search.layers[1].output->name, "h3");
}

std::string Reason(const std::string& text, const TrainingOptions& options) {
  try {
    const auto graph = ParseText(text);
    PassManager passes;
    BuildTrainingGraph(*graph, options, passes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

#define EXPECT_REASON(text, options, why) \
  EXPECT_NE(Reason(text, options).find(why), std::string::npos) << Reason(text, options)

TEST(InsertRecompute, AskedForButUnmatchedIsAnErrorWithTheReason) {
  const std::string plain =
      "graph (int64[batch,sequence] input_ids) => (float[batch,sequence,5] logits)\nparameter float[5,4] w\n"
      "{ h = Embedding(input_ids, w) t = Tanh(h) logits = Linear(t, w) }";
  EXPECT_REASON(plain, Recomputed(), "no residual sum lies on every path");
  EXPECT_REASON("graph (float[batch,sequence,4] x) => (float[batch,sequence,5] logits)\nparameter float[5,4] w\n"
                "{ t = Tanh(x) logits = Linear(t, w) }",
                Recomputed(), "no path leads from a token embedding");
  EXPECT_REASON(kLayer, Recomputed("everything"), "--recompute-keep=everything is unknown");
  TrainingOptions options;
  options.recompute = "all";
  EXPECT_REASON(kLayer, options, "--recompute=all is unknown");
  options.recompute = "none";
  options.keep = "attention";
  EXPECT_REASON(kLayer, options, "add --recompute layer");
}

TEST(InsertRecompute, LogSaysWhichLayersAndHowMuch) {
  const auto graph = ParseText(kLayer);
  PassManager passes;
  BuildTrainingGraph(*graph, Recomputed(), passes);
  EXPECT_NE(passes.Log().find("layer from 'h' to 'end', 9 of 11 nodes run again"), std::string::npos) << passes.Log();
}

int64_t ActivationBytes(const Plan& plan) {
  int64_t bytes = 0;
  for (const auto& [term, amount] : plan.ledger) {
    if (term == "activations" || term == "attention" || term == "boundaries") bytes += amount;
  }
  return bytes;
}

// Each further layer costs one boundary of 2 x 512 x 8 floats, and with its attention kept one more and
// 2 heads of log-sum-exp; without recomputation it costs all it made.
TEST(InsertRecompute, ALayerCostsItsBoundary) {
  constexpr int64_t kBoundary = 2 * 512 * 8 * 4, kLse = 2 * 512 * 2 * 4;
  const auto step = [](const TrainingOptions& options) {
    return ActivationBytes(TrainingHarness(Stack(9, true), 2, 512, options).plan) -
           ActivationBytes(TrainingHarness(Stack(8, true), 2, 512, options).plan);
  };
  EXPECT_EQ(step(Recomputed()), kBoundary);
  EXPECT_EQ(step(Recomputed("attention")), 2 * kBoundary + kLse);
  EXPECT_GE(step({}), 4 * kBoundary);
  EXPECT_EQ(UnreadBuffers(TrainingHarness(Stack(3, true), 2, 8, Recomputed()).plan), std::vector<std::string>{});
}

// Tied weights used by every layer, two micro-batches, poisoned activations. CKO-07
TEST(InsertRecompute, StepsHaveTheSameBits) {
  std::vector<std::vector<float>> first;
  for (const TrainingOptions& options : {TrainingOptions{}, Recomputed(), Recomputed("attention")}) {
    TrainingHarness training(Stack(3, true), 2, 7, options);
    training.Write("embed", ToFloats(Draw(400, 1)));
    training.Write("g", ToFloats(Draw(8, 2)));
    training.Write("w", ToFloats(Draw(64, 3)));
    std::vector<int64_t> ids, labels;
    for (int64_t i = 0; i < 14; ++i) ids.push_back(i * 31 % 50), labels.push_back(i % 5 == 0 ? -100 : i * 17 % 50);
    std::vector<std::vector<float>> results;
    for (int step = 1; step <= 2; ++step) {
      training.Step(ids, labels, 0.01, step);
      training.MicroBatch(ids, labels);
      for (const char* name : {"embed", "g", "w", "embed.grad", "g.grad", "w.grad"}) results.push_back(training.Read<float>(name));
      results.push_back({static_cast<float>(training.loss())});
    }
    if (first.empty()) first = results;
    EXPECT_EQ(results, first);
  }
}

}  // namespace
}  // namespace weir
