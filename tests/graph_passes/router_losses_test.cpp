// The losses of routers and their gradients, against float64 formulas written from the papers.
#include "graph_passes/router_losses.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <complex>
#include <numeric>

#include "graph/error.h"
#include "tests/graph_passes/training_harness.h"

namespace weir {
namespace {

using Complex = std::complex<double>;

// Two layers of E = 4 experts, k = 2, on tokens of 3 channels; routers of the four kinds the formulas know.
std::string Model(const std::string& router) {
  std::string text =
      "graph (int64[2,4] input_ids) => (float[2,4,5] logits)\n"
      "parameter float[5,3] embed\nparameter float[4,3] gate0\nparameter float[4,3] gate1\n"
      "parameter float[4,4,3] up\nparameter float[4,3,2] down\nparameter float[5,3] head\n"
      "constant int64[1] k = {2}\nconstant int64[2] rows = {-1, 3}\nconstant int64[3] whole = {2, 4, 3}\n"
      "constant float[4] bias = {0.5, -0.5, 0.25, 0}\n"
      "{ h = Embedding(input_ids, embed) x0 = Reshape(h, rows)\n";
  for (const char* layer : {"0", "1"}) {
    std::string lines = router;
    for (size_t at = 0; (at = lines.find('#')) != std::string::npos;) lines.replace(at, 1, layer);
    const std::string next = layer == std::string("0") ? "1" : "2";
    text += StrCat("g", layer, " = Linear(x", layer, ", gate", layer, ")\n", lines, "y", layer, " = Experts(x", layer, ", i", layer, ", w", layer,
                   ", up, down)\nx", next, " = Add(x", layer, ", y", layer, ")\n");
  }
  return text + "z = Reshape(x2, whole) logits = Linear(z, head) }";
}
const std::string kSoftmax = "p# = Softmax<axis = 1>(g#) w#, i# = TopK<axis = 1>(p#, k)\n";
const std::string kSoftmaxAfter = "v#, i# = TopK<axis = 1>(g#, k) w# = Softmax<axis = 1>(v#)\n";
const std::string kSigmoid = "q# = Sigmoid(g#) c# = Add(q#, bias) v#, i# = TopK<axis = 1>(c#, k) w# = GatherElements<axis = 1>(q#, i#)\n";

// What one layer hands to the formulas: gate products and routes of all tokens.
template <class T>
struct Layer {
  std::vector<T> logits;  // [N,4]
  std::vector<int64_t> ids;
};

// E * sum_e F_e P_e over the tokens of all layers together.
template <class T>
T Balance(const std::vector<Layer<T>>& layers, bool sigmoid) {
  std::vector<T> probability(4);
  std::vector<double> load(4);
  double rows = 0;
  for (const auto& layer : layers) {
    for (size_t n = 0; n < layer.logits.size(); n += 4) {
      T total = 0;
      std::vector<T> p(4);
      for (size_t e = 0; e < 4; ++e) {
        p[e] = sigmoid ? T(1) / (T(1) + std::exp(-layer.logits[n + e])) : std::exp(layer.logits[n + e]);
        total += p[e];
      }
      for (size_t e = 0; e < 4; ++e) probability[e] += p[e] / total;
      ++rows;
    }
    for (int64_t id : layer.ids) ++load[static_cast<size_t>(id)];
  }
  T sum = 0;
  for (size_t e = 0; e < 4; ++e) sum += load[e] / rows * probability[e] / rows;
  return 4.0 * sum;
}

template <class T>
T ZLoss(const std::vector<Layer<T>>& layers) {
  T sum = 0;
  double rows = 0;
  for (const auto& layer : layers) {
    for (size_t n = 0; n < layer.logits.size(); n += 4, ++rows) {
      T total = 0;
      for (size_t e = 0; e < 4; ++e) total += std::exp(layer.logits[n + e]);
      sum += std::log(total) * std::log(total);
    }
  }
  return sum / rows;
}

const std::vector<int64_t> kIds = {0, 3, 3, 1, 4, 0, 2, 1}, kLabels = {3, 3, -100, 4, 0, 2, -100, 1};  // 6 of 8 valid
const Parameters kParameters = {{"embed", Draw(15, 1)}, {"gate0", Draw(12, 2)}, {"gate1", Draw(12, 3)},
                                {"up", Draw(48, 4)},    {"down", Draw(24, 5)},  {"head", Draw(15, 6)}};

// A step of the text's graph whose gate products and routes are outputs as well.
struct OneStep {
  OneStep(const std::string& router, const RouterLossOptions& losses, double scale_of_logits = 1, const std::string& recompute = "none")
      : training(Model(router), 2, 4, Options(losses, recompute)) {
    for (const auto& [name, values] : kParameters) training.Write(name, ToFloats(values));
    // The gradient of the cross-entropy scales with loss_scale, as the router losses do: `scale_of_logits` 0 silences
    // the head instead.
    std::vector<double> head = kParameters.at("head");
    for (double& v : head) v *= scale_of_logits;
    training.Write("head", ToFloats(head));
    training.Step(kIds, kLabels, 0, 1);
  }
  static TrainingOptions Options(const RouterLossOptions& losses, const std::string& recompute) {
    TrainingOptions options;
    options.router_losses = losses;
    options.recompute = recompute;
    options.max_norm = 0;
    return options;
  }
  TrainingHarness training;
};

double RouterLoss(const OneStep& run) { return run.training.Read<float>("router_loss")[0]; }

// Layer 0's gate products in T, from the parameters, with `gate` in the place of gate0.
template <class T>
Layer<T> FirstLayer(const std::vector<T>& gate, const std::vector<double>& bias, bool sigmoid) {
  Layer<T> layer;
  for (int64_t id : kIds) {
    std::vector<double> order(4);
    for (size_t e = 0; e < 4; ++e) {
      T sum = 0;
      for (size_t c = 0; c < 3; ++c) sum += kParameters.at("embed")[static_cast<size_t>(id) * 3 + c] * gate[e * 3 + c];
      layer.logits.push_back(sum);
      order[e] = (sigmoid ? 1 / (1 + std::exp(-std::real(sum))) : std::real(sum)) + bias[e];
    }
    std::vector<int64_t> best = {0, 1, 2, 3};
    std::stable_sort(best.begin(), best.end(), [&](int64_t a, int64_t b) { return order[static_cast<size_t>(a)] > order[static_cast<size_t>(b)]; });
    layer.ids.insert(layer.ids.end(), best.begin(), best.begin() + 2);
  }
  return layer;
}

// One layer alone, so that the formulas need no experts: d loss / d gate0 by the complex step.
std::string OneLayer(const std::string& router) {
  std::string text = Model(router);
  const size_t from = text.find("g1 = "), to = text.find("z = Reshape");
  return text.erase(from, to - from).replace(text.find("Reshape(x2"), 10, "Reshape(x1");
}

void ExpectOneLayer(const std::string& router, const RouterLossOptions& losses, bool sigmoid, const std::vector<double>& bias) {
  TrainingHarness training(OneLayer(router), 2, 4, OneStep::Options(losses, "none"));
  for (const auto& [name, values] : kParameters) {
    if (name != "gate1" && name != "head" && name != "down") training.Write(name, ToFloats(values));
  }
  training.Write("head", std::vector<float>(15));  // no gradient of the cross-entropy comes back
  training.Write("down", std::vector<float>(24));
  training.Step(kIds, kLabels, 0, 1);
  const auto loss = [&](const std::vector<Complex>& gate) {
    const std::vector<Layer<Complex>> layers = {FirstLayer<Complex>(gate, bias, sigmoid)};
    return losses.balance * Balance(layers, sigmoid) + losses.z * ZLoss(layers);
  };
  std::vector<Complex> gate(kParameters.at("gate0").begin(), kParameters.at("gate0").end());
  EXPECT_NEAR(training.Read<float>("router_loss")[0], loss(gate).real(), 1e-6);  // 8 float32 terms below 4
  const auto got = training.Read<float>("gate0.grad");
  double largest = 0;
  for (size_t i = 0; i < gate.size(); ++i) {
    auto moved = gate;
    moved[i] += Complex(0, 1e-30);
    const double want = loss(moved).imag() / 1e-30;
    EXPECT_NEAR(got[i], want, 2e-6) << i;
    largest = std::max(largest, std::abs(want));
  }
  EXPECT_GT(largest, 1e-3);
}

const std::vector<double> kNoBias(4), kBias = {0.5, -0.5, 0.25, 0};

TEST(RouterLosses, BalanceOfSoftmaxRoutersAndItsGradient_RTD25) { ExpectOneLayer(kSoftmax, {.balance = 0.7}, false, kNoBias); }
TEST(RouterLosses, BalanceWhereOnlyTheChosenAreNormalised) { ExpectOneLayer(kSoftmaxAfter, {.balance = 0.7}, false, kNoBias); }
TEST(RouterLosses, BalanceOfSigmoidRouters) { ExpectOneLayer(kSigmoid, {.balance = 0.7}, true, kBias); }
TEST(RouterLosses, ZLossAndItsGradient) { ExpectOneLayer(kSoftmax, {.z = 0.3}, false, kNoBias); }
TEST(RouterLosses, BothTogether) { ExpectOneLayer(kSoftmaxAfter, {.balance = 0.2, .z = 0.3}, false, kNoBias); }

// Read back from a run: gate products and routes of both layers.
std::vector<Layer<double>> LayersOf(const std::string& router) {
  const auto graph = ParseText(Model(router));
  SpecializeShapes(*graph, 2, 4);
  for (const char* name : {"g0", "g1", "i0", "i1"}) graph->outputs.push_back(graph->FindValue(name));
  const Plan plan = MakePlan(*graph, DeviceKind::kCpu);
  Executor executor(plan);
  const auto write = [&](const std::string& name, const auto& values) {
    executor.Write(*graph->FindValue(name), values.data(), static_cast<int64_t>(values.size() * sizeof(values[0])));
  };
  for (const auto& [name, values] : kParameters) write(name, ToFloats(values));
  write("input_ids", kIds);
  executor.Run(Phase::kForward);
  std::vector<Layer<double>> layers(2);
  for (size_t l = 0; l < 2; ++l) {
    std::vector<float> logits(32);
    layers[l].ids.resize(16);
    executor.Read(*graph->FindValue(StrCat("g", l)), logits.data(), 128);
    executor.Read(*graph->FindValue(StrCat("i", l)), layers[l].ids.data(), 128);
    layers[l].logits.assign(logits.begin(), logits.end());
  }
  return layers;
}

TEST(RouterLosses, LayersCountTogether) {
  const auto layers = LayersOf(kSoftmax);
  EXPECT_NEAR(RouterLoss(OneStep(kSoftmax, {.balance = 1})), Balance(layers, false), 2e-6);
  EXPECT_NEAR(RouterLoss(OneStep(kSoftmax, {.z = 1})), ZLoss(layers), 2e-6);
  EXPECT_NEAR(RouterLoss(OneStep(kSoftmax, {.balance = 0.25, .z = 2})), 0.25 * Balance(layers, false) + 2 * ZLoss(layers), 4e-6);
  const double alone = (Balance<double>({layers[0]}, false) + Balance<double>({layers[1]}, false)) / 2;
  EXPECT_GT(std::abs(alone - Balance(layers, false)), 1e-4) << "the mean of the layers' own losses must differ for this test to mean anything";
}

// The loss proper and its bits stay; every gradient is the sum of both.
TEST(RouterLosses, AddToTheGradientOfTheLoss) {
  const OneStep plain(kSoftmax, {}), both(kSoftmax, {.balance = 0.5, .z = 0.1}), silent(kSoftmax, {.balance = 0.5, .z = 0.1}, 0);
  EXPECT_EQ(plain.training.loss(), both.training.loss());
  EXPECT_EQ(both.training.Read<float>("head.grad"), plain.training.Read<float>("head.grad"));
  for (const char* name : {"gate0.grad", "gate1.grad"}) {
    const auto a = plain.training.Read<float>(name), b = both.training.Read<float>(name), c = silent.training.Read<float>(name);
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(b[i], a[i] + c[i], 2e-6) << name << " " << i;
    EXPECT_NE(a, b);
  }
}

TEST(RouterLosses, RecomputationChangesNoBit) {
  const OneStep plain(kSoftmax, {.balance = 0.5, .z = 0.1}), again(kSoftmax, {.balance = 0.5, .z = 0.1}, 1, "layer");
  EXPECT_EQ(RouterLoss(plain), RouterLoss(again));
  for (const auto& [name, values] : kParameters) {
    EXPECT_EQ(plain.training.Read<float>(name + ".grad"), again.training.Read<float>(name + ".grad")) << name;
  }
}

// A micro-batch without labels has no part of the step.
TEST(RouterLosses, CountsByItsShareOfTheLabels) {
  OneStep run(kSoftmax, {.balance = 1});
  const double whole = RouterLoss(run);
  run.training.Write<float>("loss_scale", {1.0f / 24});  // 6 of the step's 24 labels
  run.training.MicroBatch(kIds, kLabels);
  EXPECT_NEAR(RouterLoss(run), whole / 4, 1e-6);
  run.training.MicroBatch(kIds, std::vector<int64_t>(8, -100));
  EXPECT_EQ(RouterLoss(run), 0);
}

std::string Message(const std::string& text, const RouterLossOptions& losses) {
  try {
    TrainingHarness training(text, 2, 4, OneStep::Options(losses, "none"));
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(RouterLosses, RefusesWhatItCannotDefine) {
  const std::string sigmoid = Message(Model(kSigmoid), {.z = 1});
  EXPECT_NE(sigmoid.find("--z-loss is defined for softmax routers"), std::string::npos) << sigmoid;
  const std::string tanh = Message(Model("t# = Tanh(g#) w#, i# = TopK<axis = 1>(t#, k)\n"), {.balance = 1});
  EXPECT_NE(tanh.find("'g0' goes through Tanh"), std::string::npos) << tanh;
  EXPECT_NE(tanh.find("'g1' goes through Tanh"), std::string::npos) << tanh;
  const std::string dense = Message("graph (int64[batch,sequence] input_ids) => (float[batch,sequence,5] logits)\nparameter float[5,3] embed\n"
                                    "{ h = Embedding(input_ids, embed) logits = Linear(h, embed) }", {.balance = 1});
  EXPECT_NE(dense.find("no Experts"), std::string::npos) << dense;
  EXPECT_NE(Message(Model(kSoftmax), {.balance = -1}).find("--balance-loss=-1"), std::string::npos);
  EXPECT_NE(Message(Model(kSoftmax), {.z = HUGE_VAL}).find("--z-loss=inf"), std::string::npos);
}

TEST(RouterLosses, ReadsAsText) {
  const auto graph = ParseText(OneLayer(kSoftmax));
  PassManager passes;
  BuildTrainingGraph(*graph, OneStep::Options({.balance = 0.5, .z = 0.25}, "none"), passes);
  const std::string text = ToText(*graph);
  const std::string forward = text.substr(text.find("  g0 = "), text.find("  phase backward") - text.find("  g0 = "));
  EXPECT_EQ(forward, R"(  g0 = Linear(x0, gate0)
  p0 = Softmax<axis = 1>(g0)
  w0, i0 = TopK<axis = 1>(p0, k)
  router_term = ReduceMean<keepdims = 0>(p0, const)
  router_term.2 = Shape(g0)
  router_term.3 = Expand(const.2, router_term.2)
  router_term.4 = Shape(i0)
  router_term.5 = Expand(const.3, router_term.4)
  router_term.6 = ScatterElements<axis = 1>(router_term.3, i0, router_term.5)
  router_term.7 = ReduceMean<keepdims = 0>(router_term.6, const.4)
  router_term.8 = ReduceLogSumExp<keepdims = 0>(g0, const.5)
  router_term.9 = Mul(router_term.8, router_term.8)
  router_term.10 = ReduceMean<keepdims = 0>(router_term.9, const.6)
  y0 = Experts(x0, i0, w0, up, down)
  x1 = Add(x0, y0)
  z = Reshape(x1, whole)
  logits = Linear(z, head)
  loss, loss.lse = CrossEntropy<ignore_index = -100>(logits, labels, loss_scale)
  router_term.11 = Mul(router_term, router_term.7)
  router_term.12 = ReduceSum<keepdims = 0>(router_term.11, const.7)
  router_term.13 = Mul(router_term.12, const.8)
  router_term.14 = Mul(router_term.10, const.9)
  router_term.15 = Add(router_term.13, router_term.14)
  router_term.16 = Equal(labels, const.10)
  router_term.17 = Not(router_term.16)
  router_term.18 = Cast<to = 1>(router_term.17)
  router_term.19 = ReduceSum<keepdims = 0>(router_term.18, const.11)
  router_term.20 = Mul(router_term.19, loss_scale)
  router_loss = Mul(router_term.15, router_term.20)
)");
  const std::string log = passes.Log();
  EXPECT_NE(log.find("at Experts 'y0': gate 'g0', softmax"), std::string::npos) << log;
}

}  // namespace
}  // namespace weir
