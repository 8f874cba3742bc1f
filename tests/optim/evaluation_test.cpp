// The loss on held-out data: against PyTorch's, and without a trace in what is trained.
#include <algorithm>

#include "tests/optim/same_bits.h"

namespace weir {
namespace {

constexpr auto kNever = [] { return false; };

// 8 rows of 24 with ignored labels; row 5 has none.
struct HeldOut {
  std::vector<int64_t> ids, labels;
  double loss = 0;
  int64_t valid = 0;
};

HeldOut ReadBatch8(const std::string& family) {
  const auto file = ReadSafetensors(WEIR_SOURCE_DIR "/models/" + family + "/batch8.safetensors").tensors;
  HeldOut data{.ids = file.at("input_ids")->AsInts(), .labels = file.at("labels")->AsInts(), .loss = file.at("loss_float64")->AsDoubles()[0]};
  for (const int64_t label : data.labels) data.valid += label != -100;
  return data;
}

// Rows [first, first + rows).
TrainingSession::MicroBatch Rows(const HeldOut& data, int64_t first, int64_t rows) {
  const auto part = [&](const std::vector<int64_t>& all) { return std::vector<int64_t>(all.begin() + first * 24, all.begin() + (first + rows) * 24); };
  return {.input_ids = part(data.ids), .labels = part(data.labels)};
}

TEST_P(EveryExport, EvaluatesToTheReferenceLossHoweverItIsSplit_DAT11) {
  const auto graph = LoadFamily(GetParam());
  const HeldOut data = ReadBatch8(GetParam());
  for (const int64_t rows : {1, 2, 8}) {
    for (const int64_t strip : {0, 64}) {
      TrainingOptions options;
      options.strip = strip;
      PassManager passes;
      TrainingSession session(*graph, options, rows, 24, {}, passes);
      const auto result = session.Evaluate(8 / rows, [&](int64_t i) { return Rows(data, i * rows, rows); }, kNever);
      ASSERT_TRUE(result.has_value());
      EXPECT_EQ(result->valid_labels, data.valid);
      EXPECT_NEAR(result->loss, data.loss, 1e-6 * data.loss) << rows << " rows, strip " << strip;
    }
  }
}

// A mean by weight: equal weights are none, and what weighs nothing is not there.
TEST_P(EveryExport, EvaluatesByWeight) {
  const auto graph = LoadFamily(GetParam());
  const HeldOut data = ReadBatch8(GetParam());
  TrainingOptions options;
  options.token_weights = true;
  PassManager passes;
  TrainingSession session(*graph, options, 1, 24, {}, passes);
  const auto loss = [&](const auto& weight) {
    const auto read = [&](int64_t i) {
      auto batch = Rows(data, i, 1);
      batch.weights.assign(batch.labels.size(), weight(i));
      return batch;
    };
    return session.Evaluate(8, read, kNever).value().loss;
  };
  EXPECT_NEAR(loss([](int64_t) { return 0.25f; }), data.loss, 1e-6 * data.loss);
  double weights = 0;  // the first row's thrice
  const auto labels = [&](int64_t row) { return static_cast<double>(24 - std::ranges::count(Rows(data, row, 1).labels, -100)); };
  for (int64_t row = 0; row < 8; ++row) weights += (row == 0 ? 3 : 1) * labels(row);
  const double first = loss([](int64_t row) { return row == 0 ? 1.0f : 0.0f; });
  const double sum = data.loss * static_cast<double>(data.valid) + 2 * first * labels(0);
  EXPECT_NEAR(loss([](int64_t row) { return row == 0 ? 3.0f : 1.0f; }), sum / weights, 2e-6 * data.loss);
}

TEST_P(EveryExport, EvaluationChangesNoBitOfTheTraining) {
  const auto graph = LoadFamily(GetParam());
  const HeldOut data = ReadBatch8(GetParam());
  for (const bool streamed : {false, true}) {
    TrainingOptions options;
    if (streamed) {
      options.strip = 64;
      options.recompute = "layer";
      options.host_budget = int64_t{1} << 30;
      options.offload.bucket = 1000;
    }
    const auto bits = [&](bool evaluates) {
      PassManager passes;
      TrainingSession session(*graph, options, 2, 24, {}, passes);
      std::vector<double> losses;
      for (int64_t step = 1; step <= 2; ++step) {
        if (evaluates) session.Evaluate(4, [&](int64_t i) { return Rows(data, 2 * i, 2); }, kNever);
        const TrainingSession::MicroBatch batches[] = {Rows(data, 2 * step, 2), Rows(data, 0, 2)};
        losses.push_back(session.ComputeGradients(batches).loss);
        session.Update(0.01, step);
      }
      RunBits all = {{"losses", BytesOf(losses)}};
      for (const Value* parameter : session.parameters()) {
        all[parameter->name] = BytesOf(session.Data(*parameter));
        all[parameter->name + ".m"] = BytesOf(session.Moment(*parameter, "m"));
      }
      return all;
    };
    ExpectSameBits(bits(true), bits(false), streamed ? "streamed" : "plain");
  }
}

TEST(Evaluation, StopsWhenToldAndRefusesDataWithoutALabel) {
  const auto graph = LoadFamily("olmoe");
  const HeldOut data = ReadBatch8("olmoe");
  PassManager passes;
  TrainingSession session(*graph, {}, 1, 24, {}, passes);
  int64_t read = 0;
  const auto row = [&](int64_t i) { return ++read, Rows(data, i, 1); };
  EXPECT_FALSE(session.Evaluate(8, row, [&] { return read == 3; }).has_value());
  EXPECT_EQ(read, 3);
  EXPECT_THROW(session.Evaluate(1, [&](int64_t) { return Rows(data, 5, 1); }, kNever), Error);
}

}  // namespace
}  // namespace weir
