// Small checks of rows of public reports that are about single operators: expected numbers are the rows' own or float64 by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "backend/cpu/thread_communicator.h"
#include "backend/kernel.h"
#include "backend/plan.h"
#include "graph/builder.h"
#include "graph/dtype.h"
#include "graph/layout.h"
#include "graph/parameter.h"
#include "tests/kernels/run_op.h"

namespace weir {
namespace {

// log sum exp - logit of the label, and softmax - onehot, in double.
struct RowLoss {
  double loss = 0;
  std::vector<double> gradient;
};
RowLoss LossOf(const float* logits, int64_t columns, int64_t label) {
  double sum = 0;
  for (int64_t j = 0; j < columns; ++j) sum += std::exp(static_cast<double>(logits[j]));
  RowLoss row{.loss = std::log(sum) - static_cast<double>(logits[label]), .gradient = {}};
  for (int64_t j = 0; j < columns; ++j) row.gradient.push_back(std::exp(static_cast<double>(logits[j])) / sum - (j == label ? 1 : 0));
  return row;
}

// VCE-04: columns that fill up a strip or a leaf are none, though x = 0 makes every logit 0: the faulty sum gives 11.40362.
TEST(PublicRows, AStripedHeadOfZerosIsTheLogarithmOfTheVocabulary_VCE04) {
  constexpr int64_t kColumns = 65537;
  for (const int64_t strip : {8192, 3000, 1 << 20}) {
    const auto y = RunOp("RingDtp", {Floats({1, 1}, {0}), Normal({kColumns, 1}, 1), Ints({1}, {kColumns - 1}), Floats({}, {1}), Floats({kColumns, 1}, std::vector<float>(kColumns))}, 3,
                         {{"strip", strip}});
    EXPECT_NEAR(y[0].f[0], 11.09037, 1e-5) << strip;
  }
}

// VCE-05: a bias is added once. Logits 1 to 6 by the bias alone, V = 6.
TEST(PublicRows, ABiasIsAddedOnce_VCE05) {
  const auto logits = RunOp("Linear", {Floats({1, 2}, {0, 0}), Normal({6, 2}, 1), Floats({6}, {1, 2, 3, 4, 5, 6})})[0];
  EXPECT_EQ(logits.f, (std::vector<float>{1, 2, 3, 4, 5, 6}));
  for (int64_t label = 0; label < 6; ++label) {
    const auto y = RunOp("CrossEntropy", {logits, Ints({1}, {label}), Floats({}, {1})}, 2);
    EXPECT_NEAR(y[0].f[0], 6.4561933 - static_cast<double>(label + 1), 2e-6) << label;  // log(e + ... + e^6) = 6.4561933
    EXPECT_GE(y[0].f[0], 0);
  }
}

// VCE-07: each token's gradient scales with its own g of 1, 0, 2, 0.5.
TEST(PublicRows, TokensGradientsScaleWithTheirWeights_VCE07) {
  const std::vector<float> weights = {1, 0, 2, 0.5f};
  const std::vector<int64_t> labels = {2, 0, 4, 1};
  const auto x = Normal({4, 3}, 1), w = Normal({5, 3}, 2);
  const auto logits = RunOp("Linear", {x, w})[0];
  const auto lse = RunOp("CrossEntropy", {logits, Ints({4}, labels), Floats({}, {1}), Floats({4}, weights)}, 2);
  const auto dlogits = RunOp("CrossEntropyGradient", {logits, Ints({4}, labels), lse[1], Floats({}, {1}), Floats({}, {1}), Floats({4}, weights)})[0];
  const auto head = RunOp("RingDtp", {x, w, Ints({4}, labels), Floats({}, {1}), Floats({5, 3}, std::vector<float>(15)), Floats({4}, weights)}, 3, {{"strip", int64_t{256}}});
  double loss = 0;
  for (size_t n = 0; n < 4; ++n) {
    const RowLoss row = LossOf(&logits.f[n * 5], 5, labels[n]);
    loss += static_cast<double>(weights[n]) * row.loss;
    for (size_t c = 0; c < 3; ++c) {
      double dx = 0;
      for (size_t j = 0; j < 5; ++j) dx += static_cast<double>(weights[n]) * row.gradient[j] * static_cast<double>(w.f[j * 3 + c]);
      EXPECT_NEAR(head[1].f[n * 3 + c], dx, 2e-6) << n;
    }
    for (size_t j = 0; j < 5; ++j) EXPECT_NEAR(dlogits.f[n * 5 + j], static_cast<double>(weights[n]) * row.gradient[j], 1e-6) << n;
  }
  EXPECT_NEAR(lse[0].f[0], loss, 2e-6);
  EXPECT_NEAR(head[0].f[0], loss, 2e-6);
}

// VCE-10: 1024 contributions of bfloat16's 0.01, 41/4096, are 10.25; sums in bfloat16 stall at 4.
TEST(PublicRows, ManySmallContributionsAddUp_VCE10) {
  const float hundredth = BFloat16ToFloat(FloatToBFloat16(0.01f));
  const Array<float> one = Floats({1, 1}, {1}), dy = Floats({1, 1}, {hundredth});
  Array<float> linear = Floats({1, 1}, {0}), plain = linear, head = Floats({2, 1}, {0, 0});
  for (int chunk = 0; chunk < 1024; ++chunk) {
    linear = RunOp("LinearWeightGradient", {one, dy, linear})[0];
    plain = RunOp("Accumulate", {plain, dy})[0];
    // Two equal logits: a gradient of scale * (1/2 - 1) for the label.
    head = RunOp("RingDtp", {one, Floats({2, 1}, {0, 0}), Ints({1}, {0}), Floats({}, {-2 * hundredth}), head}, 3)[2];
  }
  EXPECT_EQ(linear.f[0], 10.25f);
  EXPECT_EQ(plain.f[0], 10.25f);
  EXPECT_EQ(head.f[0], 10.25f);
  // An expert's units of one row each. relu(1) * (0 + 1) = 1.
  const auto ddown = RunOp("ExpertsGradient",
                           {Floats({1024, 1}, std::vector<float>(1024, 1)), Ints({1024, 1}, std::vector<int64_t>(1024)), Floats({1024, 1}, std::vector<float>(1024, 1)),
                            Floats({1, 2, 1}, {1, 0}), Floats({1, 1, 1}, {1}), Absent(), Absent(), Floats({1024, 1}, std::vector<float>(1024, hundredth)), Absent(), Floats({1, 1, 1}, {0})},
                           4, {{"activation", "relu"}, {"beta", 1.0}, {"unit_rows", int64_t{1}}})[3];
  EXPECT_EQ(ddown.f[0], 10.25f);
}

// VCE-20: B = 2 rows of T tokens that no tile divides are 2T tokens, where a block of 4096 ends inside the second row.
TEST(PublicRows, ABatchOfUnevenSequencesIsARunOfTokens_VCE20) {
  constexpr int64_t kLength = 2051, kColumns = 7;
  const auto x = Normal({2, kLength, 3}, 1), w = Normal({kColumns, 3}, 2);
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < 2 * kLength; ++i) labels.push_back(i * 5 % kColumns);
  const auto y = RunOp("RingDtp", {x, w, Ints({2, kLength}, labels), Floats({}, {1}), Floats({kColumns, 3}, std::vector<float>(21))}, 3, {{"strip", int64_t{256}}});
  double loss = 0;
  std::vector<double> dw(21);
  for (size_t n = 0; n < labels.size(); ++n) {
    float logits[kColumns];
    for (size_t j = 0; j < kColumns; ++j) {
      double sum = 0;
      for (size_t c = 0; c < 3; ++c) sum += static_cast<double>(x.f[n * 3 + c]) * static_cast<double>(w.f[j * 3 + c]);
      logits[j] = static_cast<float>(sum);
    }
    const RowLoss row = LossOf(logits, kColumns, labels[n]);
    loss += row.loss;
    for (size_t c = 0; c < 3; ++c) {
      double dx = 0;
      for (size_t j = 0; j < kColumns; ++j) {
        dx += row.gradient[j] * static_cast<double>(w.f[j * 3 + c]);
        dw[j * 3 + c] += row.gradient[j] * static_cast<double>(x.f[n * 3 + c]);
      }
      ASSERT_NEAR(y[1].f[n * 3 + c], dx, 4e-6) << "token " << n;
    }
  }
  EXPECT_NEAR(y[0].f[0] / loss, 1, 1e-6);
  for (size_t i = 0; i < dw.size(); ++i) EXPECT_NEAR(y[2].f[i], dw[i], 2e-3) << i;  // 4102 terms up to 3
}

// VCE-16: what is not known of a loss changes it: refused, not dropped.
TEST(PublicRows, LossesRefuseAttributesThatTheyDoNotHonour_VCE16) {
  const auto error = [](const char* op, const Attributes& attributes) {
    return ErrorOf([&] { RunOp(op, {Floats({1, 2}, {0, 0}), Ints({1}, {0})}, 1, attributes); });
  };
  for (const char* op : {"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"}) {
    EXPECT_EQ(error(op, {{"reduction", "sum"}, {"ignore_index", int64_t{-1}}}), "") << op;
    EXPECT_NE(error(op, {{"label_smoothing", 0.1}}).find("attribute 'label_smoothing' is unknown"), std::string::npos) << op;
    EXPECT_NE(error(op, {{"reduction", "median"}}).find("expected none, sum or mean"), std::string::npos) << op;
  }
}

// The norm of gradients that each of two ranks holds alone: every rank's, the one for all.
std::vector<double> NormsOfShards(const std::vector<std::vector<float>>& shards) {
  std::vector<double> norms(shards.size());
  RunRanks(std::ssize(shards), [&](Communicator& world) {
    const auto& own = shards[static_cast<size_t>(world.rank())];
    world.SetLayout({.world = world.size(), .expert_parallel = world.size()});
    Graph graph;
    Value *x = graph.AddInput("x", DType::kFloat32, {std::ssize(own)}), *norm = graph.AddValue("norm");
    InferNode(*graph.AddNode(GetOp("GradientNorm", "ai.weir"), {x}, {norm}, {{"sharded", std::vector<int64_t>{0}}, {"ranks", world.size()}, {"group", std::string("expert")}}));
    graph.outputs = {norm};
    const Plan plan = MakePlan(graph, DeviceKind::kCpu);
    Executor executor(plan, {.poison = true, .communicator = &world});
    executor.Write(*x, own.data(), std::ssize(own) * 4);
    executor.Run();
    executor.Read(*norm, &norms[static_cast<size_t>(world.rank())], sizeof(double));
  });
  return norms;
}

// OPT-10: shards [3] and [4] have the norm 5 on both. OPT-11: experts of squares 20 and 100 have 10.95445, not the mean 7.23607 of the ranks'.
TEST(PublicRows, ShardsHaveOneNormOnAllRanks_OPT10_OPT11) {
  EXPECT_EQ(NormsOfShards({{3}, {4}}), (std::vector<double>{5, 5}));
  for (const double norm : NormsOfShards({{4, 2}, {6, 8}})) EXPECT_NEAR(norm, 10.95445, 5e-6);
}

int64_t BytesOfWorkspace(std::string_view op, const std::vector<std::pair<DType, Dims>>& inputs, int outputs, const Attributes& attributes) {
  Graph graph;
  std::vector<Value*> values;
  for (const auto& [dtype, dims] : inputs) values.push_back(graph.AddInput(StrCat("in", values.size()), dtype, ToShape(dims)));
  Builder builder(graph);
  const Node& node = *builder.Ops(std::string(op), values, outputs, attributes)[0]->producer;
  return FindKernel(DeviceKind::kCpu, *node.schema)->workspace_bytes(node);
}

// RTD-11: rows that arrive from a rank of 38,000 tokens, top 8, H = 7168, are 2,179,072,000 numbers. Nothing is that large here; what is
// laid out is counted in 64 bits. (cuda_test reads and writes beyond 2^31 elements where there is a GPU.)
TEST(PublicRows, RowsOfManyTokensAreCountedIn64Bits_RTD11) {
  constexpr int64_t kTokens = 38000, kTop = 8, kWidth = 7168, kInner = 16, kExperts = 4;
  const int64_t bytes = BytesOfWorkspace("PipelinedLlep",
                                         {{DType::kFloat32, {kTokens, kWidth}}, {DType::kInt64, {kTokens, kTop}}, {DType::kFloat32, {kTokens, kTop}},
                                          {DType::kFloat32, {kExperts / 2, 2 * kInner, kWidth}}, {DType::kFloat32, {kExperts / 2, kWidth, kInner}}},
                                         2, {{"experts", kExperts}, {"expert_parallel", int64_t{2}}, {"leaves", int64_t{1}}});
  EXPECT_EQ(kTokens * kTop * kWidth, 2179072000);
  EXPECT_GE(bytes, 2179072000 * int64_t{4});
  EXPECT_LT(bytes, 2179072000 * int64_t{4} * 8);
}

// RTD-13: the last of 64 experts begins 63 * 4096 * 14336 = 3,699,376,128 numbers in.
TEST(PublicRows, TheLastExpertBeginsBeyond32Bits_RTD13) {
  constexpr int64_t kExperts = 64, kRows = 4096, kColumns = 14336;
  Graph graph;
  Value* down = graph.AddInput("down", DType::kFloat32, {kExperts, kRows, kColumns});
  Value* next = graph.AddInput("next", DType::kFloat32, {1});
  graph.outputs = {graph.AddValue("y"), graph.AddValue("z")};
  InferNode(*graph.AddNode(GetOp("Neg"), {next}, {graph.outputs[0]}));
  InferNode(*graph.AddNode(GetOp("Shape"), {down}, {graph.outputs[1]}));
  const Plan plan = MakePlan(graph, DeviceKind::kCpu);
  EXPECT_EQ(plan.buffers[static_cast<size_t>(plan.buffer_of.at(down))].bytes, 64 * kRows * kColumns * 4);
  EXPECT_GT(plan.arena_bytes, 64 * kRows * kColumns * 4);
  // Where a file's tensor of the last expert goes in the stack.
  std::vector<int64_t> places;
  ForEachElement({.tensor = "experts.63", .dims = {1, 1, 2}, .perm = {}, .offset = {kExperts - 1, 0, 0}}, {kExperts, kRows, kColumns},
                 [&](int64_t, int64_t place) { places.push_back(place); });
  EXPECT_EQ(places, (std::vector<int64_t>{3699376128, 3699376129}));
}

// CKO-08: a layer that runs again has no state of its own: no operator draws random numbers, and a Dropout, whatever its mode, is the identity.
TEST(PublicRows, NoOperatorDrawsRandomNumbers_CKO08) {
  for (const char* op : {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}) EXPECT_EQ(FindOp(op), nullptr) << op;
  const Array<float> x = Normal({100}, 1);
  Array<float> on = Floats({}, {1}, DType::kBool);
  on.i = {1}, on.f.clear();
  EXPECT_EQ(RunOp("Dropout", {x, Floats({}, {0.5f}), on})[0].f, x.f);
}

}  // namespace
}  // namespace weir
