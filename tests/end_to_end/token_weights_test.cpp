// Weights of tokens: torch's weighted mean, sum(w * loss) / sum(w) over the labels of the whole step, on any ranks.
#include <gtest/gtest.h>

#include <cmath>

#include "graph/error.h"
#include "graph/parameter.h"
#include "optim/float64_step.h"
#include "tests/end_to_end/rank_launch.h"

namespace weir {
namespace {

// 0 to 2, in an order that has nothing to do with rows.
float WeightOf(int64_t position) { return static_cast<float>(position * 5 % 9) / 4; }

struct Truth {
  double loss = 0, weight = 0;
};

// Of PyTorch's stored logits, in float64.
Truth OfStoredLogits(const std::string& family, const std::function<float(int64_t)>& weight_of) {
  const StoredBatch& batch = Stored(family);
  const auto logits = batch.reference.at("logits")->AsFloats();
  const size_t vocabulary = logits.size() / batch.labels.size();
  Truth truth;
  for (size_t i = 0; i < batch.labels.size(); ++i) {
    if (batch.labels[i] == -100) continue;
    double sum = 0;
    for (size_t v = 0; v < vocabulary; ++v) sum += std::exp(static_cast<double>(logits[i * vocabulary + v]));
    const double weight = static_cast<double>(weight_of(static_cast<int64_t>(i)));
    truth.loss += weight * (std::log(sum) - static_cast<double>(logits[i * vocabulary + static_cast<size_t>(batch.labels[i])]));
    truth.weight += weight;
  }
  truth.loss /= truth.weight;
  return truth;
}

struct Degrees {
  int64_t world = 1, expert_parallel = 1, context_parallel = 1, vocabulary_parallel = 1;
  std::string head = "whole";  // or shard, tokens
};
void PrintTo(const Degrees& d, std::ostream* out) {
  *out << "W" << d.world << "_Ep" << d.expert_parallel << "_C" << d.context_parallel << "_P" << d.vocabulary_parallel << "_" << d.head;
}
std::string Name(const testing::TestParamInfo<Degrees>& info) { return testing::PrintToString(info.param); }

Launch LaunchOf(const std::string& family, const Degrees& d, std::function<float(int64_t)> weight_of = WeightOf) {
  return {.family = family,
          .world = d.world,
          .expert_parallel = d.expert_parallel,
          .context_parallel = d.context_parallel,
          .steps = 1,
          .weight_of = std::move(weight_of),
          .knobs = [d](TrainingOptions& o) {
            o.layout.vocabulary_parallel = d.vocabulary_parallel;
            o.strip = 64;
            o.vocab_leaf = 64;
            o.head_gradient = d.head == "whole" ? "whole" : "shard";
            o.move = d.head == "tokens" ? "activations" : "weights";
          }};
}

class TokenWeights : public testing::TestWithParam<Degrees> {};

TEST_P(TokenWeights, TheLossIsThatOfPyTorchsLogits) {
  for (const char* family : {"mixtral", "gpt_oss", "olmoe", "qwen3_moe", "deepseek_v3"}) {
    const Truth truth = OfStoredLogits(family, WeightOf);
    EXPECT_NEAR(RunLaunch(LaunchOf(family, GetParam())).losses[0], truth.loss, 1e-6 * truth.loss) << family;
    EXPECT_GT(std::abs(truth.loss - OfStoredLogits(family, [](int64_t) { return 1.0f; }).loss), 1e-4 * truth.loss) << "weights matter";
  }
}

TEST_P(TokenWeights, LossAndGradientsAreThoseOfPyTorch) {
  for (const char* family : {"mixtral", "gpt_oss"}) {
    Launch launch = LaunchOf(family, GetParam(), {});
    launch.file = "weighted";
    ExpectReference(RunLaunch(launch), family, launch.file);
  }
}

TEST_P(TokenWeights, GradientsAreThoseOfFloat64) {
  const StoredBatch& batch = Stored("mixtral");
  TrainingSession::MicroBatch micro{.input_ids = batch.ids, .labels = batch.labels};
  for (size_t i = 0; i < batch.labels.size(); ++i) micro.weights.push_back(WeightOf(static_cast<int64_t>(i)));
  std::map<std::string, std::vector<float>> weights;
  for (const Value* p : batch.graph->ValuesWithRole(Role::kParameter)) weights[p->name] = LoadParameter(*batch.graph, *p);
  TrainingOptions options;
  options.token_weights = true;
  const Float64Step truth = RunFloat64(*batch.graph, options, batch.rows, batch.length, {&micro, 1}, weights);
  EXPECT_NEAR(truth.loss, OfStoredLogits("mixtral", WeightOf).loss, 1e-6 * truth.loss);
  const Outcome got = RunLaunch(LaunchOf("mixtral", GetParam()));
  int compared = 0;
  for (const Value* p : batch.graph->ValuesWithRole(Role::kParameter)) {
    const auto& whole = truth.gradients.at(p->name);
    for (const auto& [name, expected] : ToSourceLayout(*p, std::vector<float>(whole.begin(), whole.end()), true)) {
      const auto& own = got.gradients.at(name);
      double distance = 0, norm = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        distance += std::pow(static_cast<double>(own[i]) - static_cast<double>(expected[i]), 2);
        norm += std::pow(static_cast<double>(expected[i]), 2);
      }
      EXPECT_LT(std::sqrt(distance / norm), 1e-5) << name;
      ++compared;
    }
  }
  EXPECT_GT(compared, 20);
}

// A common factor cancels: PyTorch's stored loss and gradients.
TEST_P(TokenWeights, EqualWeightsAreNone) {
  ExpectReference(RunLaunch(LaunchOf("olmoe", GetParam(), [](int64_t) { return 0.7f; })), "olmoe");
}

INSTANTIATE_TEST_SUITE_P(Degrees, TokenWeights,
                         testing::Values(Degrees{}, Degrees{.world = 2, .vocabulary_parallel = 2}, Degrees{.world = 2, .context_parallel = 2},
                                         Degrees{.world = 2, .vocabulary_parallel = 2, .head = "shard"}, Degrees{.world = 4, .vocabulary_parallel = 2, .head = "tokens"},
                                         Degrees{.world = 4, .expert_parallel = 2, .context_parallel = 2, .vocabulary_parallel = 2, .head = "tokens"}),
                         Name);

// 0 and 1 are masks, to the bit; the step's labels are cut into micro-batches without a mean of means.
TEST(TokenWeightsOfSteps, MasksHaveTheBitsOfIgnoredLabels) {
  const StoredBatch& batch = Stored("olmoe");
  for (const int64_t strip : {0, 64}) {
    const auto run = [&](bool weighted) {
      TrainingOptions options;
      options.strip = strip;
      options.token_weights = weighted;
      PassManager passes;
      TrainingSession session(*batch.graph, options, 2, batch.length, {}, passes);
      std::vector<TrainingSession::MicroBatch> micro(4);
      for (size_t m = 0; m < micro.size(); ++m) {
        const int64_t size = 2 * batch.length, first = static_cast<int64_t>(m) * size;
        micro[m].input_ids.assign(batch.ids.begin() + first, batch.ids.begin() + first + size);
        micro[m].labels.assign(batch.labels.begin() + first, batch.labels.begin() + first + size);
        for (int64_t i = 0; i < size; ++i) {
          const bool masked = (first + i) % 7 == 2;
          if (weighted) micro[m].weights.push_back(masked ? 0.0f : 1.0f);
          if (!weighted && masked) micro[m].labels[static_cast<size_t>(i)] = -100;
        }
      }
      const StepResult result = session.ComputeGradients(micro);
      session.Update(1e-3, 1);
      std::map<std::string, std::vector<float>> all = {{"loss", {static_cast<float>(result.label_weight)}}};
      for (const Value* p : session.parameters()) all[p->name] = session.Data(*p), all[p->name + ".grad"] = session.Gradient(*p);
      return std::pair(result.loss, all);
    };
    EXPECT_EQ(run(true), run(false)) << strip;
  }
}

TEST(TokenWeightsOfSteps, WrongWeightsAreErrors) {
  const StoredBatch& batch = Stored("mixtral");
  const auto told = [&](std::vector<float> weights, bool taken = true) {
    TrainingOptions options;
    options.token_weights = taken;
    PassManager passes;
    TrainingSession session(*batch.graph, options, 1, 4, {}, passes);
    const TrainingSession::MicroBatch micro{.input_ids = {1, 2, 3, 4}, .labels = {2, 3, 4, 5}, .document_starts = {}, .weights = std::move(weights)};
    try {
      session.ComputeGradients({&micro, 1});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(told({1, 2, 0, 0.5f}), "");
  EXPECT_EQ(told({}), "") << "1 each";
  EXPECT_EQ(told({0, 0, 0, 0}), "") << "nothing is learnt";
  EXPECT_NE(told({1, 1, -1, 1}).find("micro-batch 0: weight 2 is -1"), std::string::npos);
  EXPECT_NE(told({1, 1, 1, std::nanf("")}).find("weight 3 is nan"), std::string::npos);
  EXPECT_NE(told({1, 1, 1}).find("has 3 weights for 4 labels"), std::string::npos);
  EXPECT_NE(told({1, 1, 1, 1}, false).find("weighs tokens; train with --token-weights"), std::string::npos);
}

}  // namespace
}  // namespace weir
