// Router losses of the stored exports, against the formulas in float64 on the gate products and routes that PyTorch
// stored, and over ranks.
#include <algorithm>
#include <cmath>

#include "tests/optim/same_bits.h"

namespace weir {
namespace {

struct Routed {
  std::vector<std::vector<float>> logits;
  std::vector<std::vector<int64_t>> ids;
  int64_t tokens = 0, experts = 0;
};

Routed StoredRoutes(const NamedTensors& reference) {
  Routed routed;
  for (const auto& [name, tensor] : reference) {
    if (!name.starts_with("router.")) continue;
    if (name.ends_with(".indices")) routed.ids.push_back(tensor->AsInts());
    if (!name.ends_with(".logits")) continue;
    routed.tokens = tensor->dims()[0];
    routed.experts = tensor->dims()[1];
    routed.logits.push_back(tensor->AsFloats());
  }
  return routed;
}

// transformers' load_balancing_loss_func: softmax or sigmoid over all experts, layers side by side.
double Balance(const Routed& routed, bool sigmoid) {
  const auto experts = static_cast<size_t>(routed.experts);
  std::vector<double> probability(experts), load(experts);
  const double rows = static_cast<double>(routed.tokens) * static_cast<double>(routed.logits.size());
  for (const auto& logits : routed.logits) {
    for (size_t n = 0; n < logits.size(); n += experts) {
      std::vector<double> p(experts);
      double total = 0;
      for (size_t e = 0; e < experts; ++e) total += p[e] = sigmoid ? 1 / (1 + std::exp(-double{logits[n + e]})) : std::exp(double{logits[n + e]});
      for (size_t e = 0; e < experts; ++e) probability[e] += p[e] / total;
    }
  }
  for (const auto& ids : routed.ids) {
    for (int64_t id : ids) ++load[static_cast<size_t>(id)];
  }
  double sum = 0;
  for (size_t e = 0; e < experts; ++e) sum += load[e] / rows * probability[e] / rows;
  return static_cast<double>(experts) * sum;
}

double ZLoss(const Routed& routed) {
  double sum = 0;
  for (const auto& logits : routed.logits) {
    for (size_t n = 0; n < logits.size(); n += static_cast<size_t>(routed.experts)) {
      double total = 0;
      for (int64_t e = 0; e < routed.experts; ++e) total += std::exp(double{logits[n + static_cast<size_t>(e)]});
      sum += std::log(total) * std::log(total);
    }
  }
  return sum / static_cast<double>(routed.tokens) / static_cast<double>(routed.logits.size());
}

double LossOf(const Graph& graph, const NamedTensors& reference, const RouterLossOptions& losses) {
  const TensorData& ids = *reference.at("input_ids");
  TrainingOptions options;
  options.router_losses = losses;
  PassManager passes;
  TrainingSession session(graph, options, ids.dims()[0], ids.dims()[1], {}, passes);
  const TrainingSession::MicroBatch batch{ids.AsInts(), reference.at("labels")->AsInts()};
  return session.ComputeGradients({&batch, 1}).loss;
}

// PyTorch's float32 gate products differ from ours by 2e-5 at most; the losses' slopes in them are below 1 per token.
constexpr double kTolerance = 2e-5;

TEST_P(EveryExport, RouterLossesAreTheFormulasOfPyTorchsRoutes) {
  const auto graph = LoadFamily(GetParam());
  const Safetensors file = ReadSafetensors(std::string(WEIR_SOURCE_DIR "/models/") + GetParam() + "/reference.safetensors");
  const Routed routed = StoredRoutes(file.tensors);
  ASSERT_FALSE(routed.logits.empty());
  ASSERT_EQ(routed.logits.size(), routed.ids.size());
  const bool sigmoid = GetParam() == std::string("deepseek_v3");
  const double plain = LossOf(*graph, file.tensors, {});
  EXPECT_NEAR(LossOf(*graph, file.tensors, {.balance = 1}) - plain, Balance(routed, sigmoid), kTolerance);
  if (sigmoid) {
    EXPECT_THROW(LossOf(*graph, file.tensors, {.z = 1}), Error);
  } else {
    EXPECT_NEAR(LossOf(*graph, file.tensors, {.z = 1}) - plain, ZLoss(routed), kTolerance);
  }
}

// Two micro-batches of a row each, whose labels weigh 3 and 1: the step's router loss is the mean of theirs by weight.
TEST(RouterLosses, AreWeighedLikeTheLossItself) {
  const auto graph = LoadFamily("mixtral");
  const Safetensors file = ReadSafetensors(WEIR_SOURCE_DIR "/models/mixtral/reference.safetensors");
  const auto ids = file.tensors.at("input_ids")->AsInts(), labels = file.tensors.at("labels")->AsInts();
  const auto sequence = std::ssize(ids) / 2;
  TrainingOptions options;
  options.router_losses = {.balance = 1};
  options.token_weights = true;
  PassManager passes;
  TrainingSession session(*graph, options, 1, sequence, {}, passes);
  const auto row = [&](int64_t i, float weight) {
    TrainingSession::MicroBatch micro{.input_ids = {ids.begin() + i * sequence, ids.begin() + (i + 1) * sequence},
                                      .labels = {labels.begin() + i * sequence, labels.begin() + (i + 1) * sequence}};
    micro.weights.assign(static_cast<size_t>(sequence), weight);
    return micro;
  };
  const auto loss = [&](const std::vector<TrainingSession::MicroBatch>& step) { return session.ComputeGradients(step).router_loss; };
  const double first = loss({row(0, 1)}), second = loss({row(1, 1)});
  EXPECT_GT(std::abs(first - second), 1e-3);
  EXPECT_NEAR(loss({row(0, 3), row(1, 1)}), (3 * first + second) / 4, 1e-6);
  auto half = row(0, 1);
  std::fill_n(half.labels.begin(), sequence / 2, -100);
  EXPECT_NEAR(loss({half}), first, 1e-6) << "what weighs and has no label is not in the mean";
}

TEST_P(EveryExport, StreamingChangesNoBitOfRouterLosses) {
  const auto graph = LoadFamily(GetParam());
  TrainingOptions options;
  options.router_losses = {.balance = 0.01, .z = GetParam() == std::string("deepseek_v3") ? 0 : 0.001};
  const RunBits twin = BitsOfRun(*graph, options);
  options.recompute = "layer";
  options.keep = "attention";
  options.strip = 64;
  options.host_budget = int64_t{1} << 30;
  options.offload = {.bucket = 1000, .slots = 2};
  options.stream_dispatch = StreamDispatchOptions{.chunk_tokens = 6};
  ExpectSameBits(BitsOfRun(*graph, options), twin, GetParam());
}

}  // namespace
}  // namespace weir
