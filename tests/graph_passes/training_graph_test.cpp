// The whole step on hand-written graphs: gradients against central differences, AdamW against formulas in
// double, accumulation over micro-batches, ignored labels, threads, memory.
#include <gtest/gtest.h>

#include <algorithm>

#include "backend/arena_layout.h"
#include "backend/cpu/parallel.h"
#include "graph/error.h"
#include "tests/graph_passes/training_harness.h"

namespace weir {
namespace {

// Sums of up to 50 float32 products of magnitude <= 1: rounding is below 32 eps of the largest.
constexpr double kTolerance = 32 * 1.2e-7;

void ExpectNear(const std::vector<float>& got, const std::vector<double>& expected, const std::string& what,
                double tolerance = kTolerance) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], tolerance) << what << " " << i;
}

// The golden pair of the three passes. w is used twice: its contributions share one chain; h's two
// gradients meet in one Add, the later consumer first.
TEST(TrainingGraph, ReadsAsText) {
  const auto graph = ParseText(
      "graph tiny (int64[batch,sequence] input_ids) => (float[batch,sequence,4] logits)\n"
      "parameter float[4,4] w\nconstant float[4] g = {1, 1, 1, 1}\n"
      "{ h = Embedding(input_ids, w) n = RmsNorm(h, g) s = Add(h, n) logits = Linear(s, w) }");
  PassManager passes;
  BuildTrainingGraph(*graph, {}, passes);
  EXPECT_EQ(ToText(*graph), R"(graph tiny (int64[batch,sequence] input_ids, int64[batch,sequence] labels, float[] loss_scale, double[] learning_rate, int64[] step) => (double[] loss, double[] gradient_norm)
parameter float[4,4] w
constant float[4] g = {1, 1, 1, 1}
gradient float[4,4] w.grad
constant float[] const = {1}
state float[4,4] w.m
state float[4,4] w.v
{
  phase begin
  ZeroFill = ZeroFill(w.grad)
  phase forward
  h = Embedding(input_ids, w)
  n, n.rstd = RmsNorm(h, g)
  s = Add(h, n)
  logits = Linear(s, w)
  loss, loss.lse = CrossEntropy<ignore_index = -100>(logits, labels, loss_scale)
  phase backward
  logits.grad = CrossEntropyGradient<ignore_index = -100>(logits, labels, loss.lse, loss_scale, const)
  s.grad = MatMul(logits.grad, w)
  LinearWeightGradient = LinearWeightGradient(s, logits.grad, ZeroFill)
  RmsNormGradient = RmsNormGradient(h, g, n.rstd, s.grad)
  h.grad = Add(s.grad, RmsNormGradient)
  EmbeddingGradient = EmbeddingGradient(input_ids, h.grad, LinearWeightGradient)
  phase norm
  gradient_norm = GradientNorm(EmbeddingGradient)
  clip_coefficient = ClipCoefficient<max_norm = 1.0>(gradient_norm)
  phase update
  w.updated, w.updated.2, w.updated.3 = AdamW<beta1 = 0.9, beta2 = 0.95, epsilon = 1e-08, weight_decay = 0.1>(w, EmbeddingGradient, w.m, w.v, learning_rate, step, clip_coefficient)
}
)");
}

constexpr const char* kModel =
    "graph (int64[batch,sequence] input_ids) => (float[batch,sequence,5] logits)\n"
    "parameter float[5,4] embed\nparameter float[4] gamma\nparameter float[4,4] mix\nparameter float[5,4] head\n"
    "{\n"
    "  h = Embedding(input_ids, embed)\n"
    "  a = RmsNorm<epsilon = 0.01>(h, gamma)\n"
    "  b = Linear(a, mix)\n"
    "  c = Add(h, b)\n"
    "  d = Linear(c, mix)\n"        // mix is shared by two places
    "  e = RmsNorm<epsilon = 0.01>(d, gamma)\n"
    "  logits = Linear(e, head)\n"
    "}";

std::vector<double> RmsNorm(const std::vector<double>& x, const std::vector<double>& gamma, double epsilon) {
  const size_t h = gamma.size();
  std::vector<double> y(x.size());
  for (size_t i = 0; i < x.size(); i += h) {
    double sum = 0;
    for (size_t j = 0; j < h; ++j) sum += x[i + j] * x[i + j];
    for (size_t j = 0; j < h; ++j) y[i + j] = gamma[j] * x[i + j] / std::sqrt(sum / static_cast<double>(h) + epsilon);
  }
  return y;
}

std::vector<double> Rows(const std::vector<int64_t>& ids, const std::vector<double>& table, size_t h) {
  std::vector<double> rows;
  for (int64_t id : ids) rows.insert(rows.end(), table.begin() + id * h, table.begin() + (id + 1) * h);
  return rows;
}

double ModelLoss(const Parameters& p, const std::vector<int64_t>& ids, const std::vector<int64_t>& labels) {
  const double epsilon = 0.01f;
  const auto h = Rows(ids, p.at("embed"), 4);
  auto c = Project(RmsNorm(h, p.at("gamma"), epsilon), p.at("mix"), 4);
  for (size_t i = 0; i < c.size(); ++i) c[i] += h[i];
  const auto e = RmsNorm(Project(c, p.at("mix"), 4), p.at("gamma"), epsilon);
  return MeanCrossEntropy(Project(e, p.at("head"), 4), labels);
}

Parameters ModelParameters() {
  return {{"embed", Draw(20, 1)}, {"gamma", Draw(4, 2)}, {"mix", Draw(16, 3)}, {"head", Draw(20, 4)}};
}

const std::vector<int64_t> kIds = {0, 3, 3, 1, 4, 0}, kLabels = {3, 3, -100, 4, 0, 2};

TEST(TrainingGraph, DeterministicAsksEveryAttentionForOwnKernels) {
  const auto graph = ParseText(
      "graph tiny (int64[batch,sequence] input_ids) => (float[batch,sequence,6] logits)\n"
      "parameter float[6,4] w\n"
      "{ h = Embedding(input_ids, w) heads = Reshape(h, int64[4]{0, 0, 2, 2}) attended = ai.weir::Attention<scale = 0.5>(heads, heads, heads)\n"
      "  s = Reshape(attended, int64[3]{0, 0, 4}) logits = Linear(s, w) }");
  for (const bool deterministic : {false, true}) {
    const auto training = Clone(*graph);
    PassManager passes;
    BuildTrainingGraph(*training, {.deterministic = deterministic}, passes);
    int found = 0;
    for (const auto& node : training->nodes()) {
      if (node->op() != "AttentionGradient") continue;
      ++found;
      EXPECT_EQ(node->attributes.Int("deterministic", 0), deterministic);
    }
    EXPECT_EQ(found, 1);
  }
}

TEST(TrainingGraph, GradientsMatchCentralDifferences) {
  TrainingHarness training(kModel, 2, 3);
  const Parameters parameters = ModelParameters();
  for (const auto& [name, values] : parameters) training.Write(name, ToFloats(values));
  training.Step(kIds, kLabels, 0, 1);
  EXPECT_NEAR(training.loss(), ModelLoss(parameters, kIds, kLabels), kTolerance);
  const auto expected = CentralDifferences(parameters, [](const Parameters& p) { return ModelLoss(p, kIds, kLabels); });
  double square = 0;
  for (const auto& [name, gradient] : expected) {
    ExpectNear(training.Read<float>(name + ".grad"), gradient, name);
    for (double g : gradient) square += g * g;
  }
  EXPECT_NEAR(training.Read<double>("gradient_norm")[0], std::sqrt(square), kTolerance);
}

TEST(TrainingGraph, ASecondStepStartsFromZeroAccumulators) {
  TrainingHarness training(kModel, 2, 3);
  for (const auto& [name, values] : ModelParameters()) training.Write(name, ToFloats(values));
  training.Step(kIds, kLabels, 0, 1);
  const auto first = training.Read<float>("mix.grad");
  training.Step(kIds, kLabels, 0, 2);
  EXPECT_EQ(training.Read<float>("mix.grad"), first);
}

// Textbook AdamW (Loshchilov & Hutter 2019, algorithm 2) as torch.optim.AdamW states it.
struct Adam {
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, decay = 0;
  std::vector<double> m, v;
  void Step(std::vector<double>& p, const std::vector<double>& g, double lr, double coefficient, int t) {
    m.resize(p.size());
    v.resize(p.size());
    for (size_t i = 0; i < p.size(); ++i) {
      const double clipped = g[i] * coefficient;
      p[i] -= lr * decay * p[i];
      m[i] = beta1 * m[i] + (1 - beta1) * clipped;
      v[i] = beta2 * v[i] + (1 - beta2) * clipped * clipped;
      const double corrected = m[i] / (1 - std::pow(beta1, t));
      p[i] -= lr * corrected / (std::sqrt(v[i] / (1 - std::pow(beta2, t))) + epsilon);
    }
  }
};

// OPT-22: head and embedding are one parameter with one gradient and one pair of moments.
TEST(TrainingGraph, TiedEmbeddingStepsOnce) {
  TrainingHarness training(
      "graph (int64[batch,sequence] input_ids) => (float[batch,sequence,3] logits)\nparameter float[3,2] w\n"
      "{ h = Embedding(input_ids, w) logits = Linear(h, w) }",
      1, 4);
  const std::vector<int64_t> ids = {0, 2, 2, 1}, labels = {2, 2, 1, 0};
  Parameters p = {{"w", {0.5, -0.25, 0.75, 0.125, -0.5, 1}}};
  training.Write("w", ToFloats(p["w"]));
  Adam adam{.decay = 0.1, .m = {}, .v = {}};
  for (int t = 1; t <= 3; ++t) {
    training.Step(ids, labels, 0.1, t);
    // d loss / d w by hand: rows of the head gain (softmax - onehot) h / N, rows of the table gain the
    // same error times the head.
    std::vector<double> g(6, 0.0);
    const auto& w = p["w"];
    for (size_t n = 0; n < 4; ++n) {
      const size_t id = static_cast<size_t>(ids[n]);
      double z[3], total = 0;
      for (size_t j = 0; j < 3; ++j) total += z[j] = std::exp(w[id * 2] * w[j * 2] + w[id * 2 + 1] * w[j * 2 + 1]);
      for (size_t j = 0; j < 3; ++j) {
        const double error = (z[j] / total - (static_cast<size_t>(labels[n]) == j)) / 4;
        for (size_t c = 0; c < 2; ++c) {
          g[j * 2 + c] += error * w[id * 2 + c];
          g[id * 2 + c] += error * w[j * 2 + c];
        }
      }
    }
    double norm = 0;
    for (double x : g) norm += x * x;
    ExpectNear(training.Read<float>("w.grad"), g, "gradient", 1e-5);
    adam.Step(p["w"], g, 0.1, std::min(1.0, 1 / (std::sqrt(norm) + 1e-6)), t);
    ExpectNear(training.Read<float>("w"), p["w"], "weight", 1e-5);
  }
  EXPECT_EQ(training.graph->ValuesWithRole(Role::kOptimizerState).size(), 2u);
}

// DAT-11: one token of loss 4 and three of loss 1 have the mean 1.75, not the mean of means 2.5.
constexpr const char* kTable =
    "graph (int64[batch,sequence] input_ids) => (float[batch,sequence,2] logits)\nparameter float[2,2] table\n"
    "{ logits = Embedding(input_ids, table) }";

void WriteLosses(TrainingHarness& training) {  // row 0 costs 4, row 1 costs 1, for label 0
  const auto other = [](double loss) { return static_cast<float>(std::log(std::expm1(loss))); };
  training.Write<float>("table", {0, other(4), 0, other(1)});
}

TEST(TrainingGraph, MicroBatchesAddUpToTheMeanOverTokens) {
  TrainingHarness training(kTable, 1, 3);
  WriteLosses(training);
  training.Write<float>("loss_scale", {0.25f});
  training.executor->Run(Phase::kBegin);
  training.MicroBatch({0, 1, 1}, {0, -100, -100});
  const double first = training.loss();
  training.MicroBatch({1, 1, 1}, {0, 0, 0});
  EXPECT_NEAR(first + training.loss(), 1.75, 1e-6);
  // d loss / d logits = (softmax - onehot) / 4; softmax[0] = exp(-loss).
  const double four = (std::exp(-4.0) - 1) / 4, one = 3 * (std::exp(-1.0) - 1) / 4;
  ExpectNear(training.Read<float>("table.grad"), {four, -four, one, -one}, "gradient");
}

// VCE-08
TEST(TrainingGraph, IgnoredLabelsGiveZerosAndNoNaN) {
  TrainingHarness training(kTable, 1, 3);
  WriteLosses(training);
  const auto before = training.Read<float>("table");
  training.Step({0, 1, 0}, {-100, -100, -100}, 0.1, 1);
  EXPECT_EQ(training.loss(), 0);
  EXPECT_EQ(training.Read<double>("gradient_norm")[0], 0);
  EXPECT_EQ(training.Read<float>("table.grad"), (std::vector<float>(4, 0)));
  // A zero gradient moves nothing but the decay: p * (1 - lr * decay).
  const auto after = training.Read<float>("table");
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(after[i], 0.99 * before[i], 1e-6);
}

// OPT-05: a parameter that no gradient reaches steps with a zero gradient.
TEST(TrainingGraph, UnusedParametersAlwaysStep) {
  TrainingHarness training(
      "graph (int64[batch,sequence] input_ids) => (float[batch,sequence,2] logits)\n"
      "parameter float[2,2] table\nparameter float[2,2] idle\n{ logits = Embedding(input_ids, table) }",
      1, 2);
  training.Write<float>("idle", {1, 2, 3, 4});
  training.Step({0, 1}, {0, 1}, 0.5, 1);
  EXPECT_EQ(training.Read<float>("idle.grad"), (std::vector<float>(4, 0)));
  ExpectNear(training.Read<float>("idle"), {0.95, 1.9, 2.85, 3.8}, "idle", 1e-6);
}

TEST(TrainingGraph, BitsDoNotDependOnThreads) {
  const std::string text =
      "graph (int64[batch,sequence] input_ids) => (float[batch,sequence,307] logits)\n"
      "parameter float[307,64] embed\nparameter float[64] gamma\nparameter float[64,64] mix\n"
      "{ h = Embedding(input_ids, embed) a = RmsNorm(h, gamma) b = Linear(a, mix) c = Add(h, b)\n"
      "  logits = Linear(c, embed) }";
  std::vector<std::vector<float>> results;
  for (int threads : {1, 2}) {
    SetCpuThreads(threads);
    TrainingHarness training(text, 3, 67);
    training.Write("embed", ToFloats(Draw(307 * 64, 1)));
    training.Write("gamma", ToFloats(Draw(64, 2)));
    training.Write("mix", ToFloats(Draw(64 * 64, 3)));
    std::vector<int64_t> ids, labels;
    for (int64_t i = 0; i < 3 * 67; ++i) ids.push_back(i * 31 % 307), labels.push_back(i * 17 % 307);
    for (int step = 1; step <= 2; ++step) training.Step(ids, labels, 0.01, step);
    for (const char* name : {"embed", "gamma", "mix", "mix.grad"}) results.push_back(training.Read<float>(name));
  }
  SetCpuThreads(0);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(results[i], results[i + 4]) << i;
}

TEST(TrainingGraph, PlansLessThanItsBuffersAndReadsThemAll) {
  TrainingHarness training(kModel, 2, 300);
  int64_t sum = 0, ledger = 0;
  for (const PlannedBuffer& buffer : training.plan.buffers) sum += Aligned(buffer.bytes);
  for (const auto& [term, bytes] : training.plan.ledger) ledger += bytes;
  EXPECT_LT(training.plan.arena_bytes, sum);
  EXPECT_EQ(ledger, training.plan.arena_bytes);
  EXPECT_EQ(UnreadBuffers(training.plan), std::vector<std::string>{});
  EXPECT_EQ(training.plan.ledger.at("optimizer"), 2 * training.plan.ledger.at("weights"));
  EXPECT_EQ(training.plan.ledger.at("grads"), training.plan.ledger.at("weights"));
  // logits [2,300,5]: the gradient overwrites them.
  EXPECT_EQ(training.plan.buffer_of.at(training.graph->FindValue("logits")),
            training.plan.buffer_of.at(training.graph->FindValue("logits.grad")));
}

}  // namespace
}  // namespace weir
