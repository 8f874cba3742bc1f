// A new run that begins with what another trained. Truth: the bits that were saved, and AdamW in float64.
#include "optim/initial_load.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "graph/error.h"
#include "importer/importer.h"
#include "importer/safetensors.h"
#include "optim/checkpoint.h"
#include "optim/export.h"
#include "optim/trainer.h"

namespace weir {
namespace {

namespace fs = std::filesystem;
using State = std::map<std::string, std::vector<float>>;  // "m/NAME", "v/NAME", "w/NAME"

class InitialLoad : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("weir_initial_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()) + std::to_string(getpid()));
    fs::create_directories(folder_);
    std::ofstream text(folder_ / "text.txt");
    for (int i = 0; i < 60; ++i) text << "line " << i * i << " of a small text\n";
    text.close();
    graph_ = Model("olmoe");
  }
  void TearDown() override { fs::remove_all(folder_); }

  static std::unique_ptr<Graph> Model(const std::string& family, std::vector<std::string> freeze = {}) {
    auto graph = ReadOnnx(std::string(WEIR_SOURCE_DIR "/models/") + family + "/dynamo18_batched_mm_sdpa.onnx");
    PassManager passes;
    Canonicalize(*graph, {.names = nullptr, .freeze = std::move(freeze)}, passes);
    return graph;
  }
  struct Run {
    std::unique_ptr<DataLoader> data;
    std::unique_ptr<Trainer> trainer;
    TrainingSession& session() { return trainer->session(); }
  };
  Run Make(const Graph& graph, int64_t sequence, uint64_t seed, double rate = 3e-3, const std::string& precision = "float32") const {
    TrainerOptions options;
    options.sequence = sequence;
    options.micro_batch = 2;
    options.steps = 10;
    options.schedule.kind = "constant";
    options.schedule.peak = rate;
    options.training.weight_decay = kDecay;
    options.training.decay = "all";
    options.training.max_norm = 0;
    options.training.precision = precision;
    Run run;
    run.data = std::make_unique<DataLoader>(OpenTokenFiles(folder_ / "text.txt", {}), DataOptions{.sequence = sequence, .seed = seed, .vocabulary = 307});
    PassManager passes;
    run.trainer = std::make_unique<Trainer>(graph, options, *run.data, passes);
    return run;
  }
  // The state after `steps` steps of a run, which are saved.
  State Train(const std::string& out, int steps, const Graph& graph, double rate = 3e-3) const {
    Run run = Make(graph, 24, 3, rate);
    for (int i = 0; i < steps; ++i) run.trainer->Step();
    Checkpoints(folder_ / out / "checkpoints").Save(run.session(), run.trainer->State({{"--seed", "3"}}));
    return StateOf(run.session());
  }
  static State StateOf(const TrainingSession& session) {
    State state;
    for (const auto& [name, slot] : SlotsOf(session)) {
      auto& values = state[name];
      values.resize(static_cast<size_t>(NumElements(ToDims(slot.parameter->shape))));
      session.ReadState(*slot.parameter, slot.kind, 0, values);
    }
    return state;
  }
  RunOrigin Load(Run& run, const Graph& graph, const fs::path& path, bool model_only = false) {
    notices_.clear();
    const RunOrigin origin = LoadInitial(graph, {folder_ / path, model_only}, &run.session(), notices_);
    run.trainer->ContinueUpdates(origin.updates);
    return origin;
  }
  std::string Refused(const Graph& graph, const fs::path& path, ErrorCode code = ErrorCode::kInvalidArgument) {
    try {
      LoadInitial(graph, {.path = folder_ / path}, nullptr, notices_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      return error.what();
    }
    return "not refused";
  }
  // One step of torch's AdamW from `before` with these gradients, in float64, is what the run does.
  void ExpectStep(Run& run, const State& before, int64_t updates, double rate) const {
    TrainingSession::MicroBatch batch;
    for (int64_t row = 0; row < 2; ++row) {
      const Sample sample = run.data->Get(row);  // the first of the new run's own data
      batch.input_ids.insert(batch.input_ids.end(), sample.input_ids.begin(), sample.input_ids.end());
      batch.labels.insert(batch.labels.end(), sample.labels.begin(), sample.labels.end());
    }
    run.session().ComputeGradients(std::span(&batch, 1));
    std::map<std::string, std::vector<float>> gradients;
    for (const Value* p : run.session().parameters()) gradients[p->name] = run.session().Gradient(*p);
    ASSERT_EQ(StateOf(run.session()), before) << "gradients change nothing";
    const StepRecord record = run.trainer->Step();
    EXPECT_EQ(record.step, 1);
    const State after = StateOf(run.session());
    const auto t = static_cast<double>(updates + 1);
    double worst = 0;
    for (const auto& [name, gradient] : gradients) {
      for (size_t i = 0; i < gradient.size(); ++i) {
        const double g = gradient[i], m = 0.9 * before.at("m/" + name)[i] + 0.1 * g, v = kBeta2 * before.at("v/" + name)[i] + (1 - kBeta2) * g * g;
        const double w = before.at("w/" + name)[i] * (1 - rate * kDecay), hat = v / (1 - std::pow(kBeta2, t));
        const double expected = w - rate * (m / (1 - std::pow(0.9, t))) / (std::sqrt(hat) + kEpsilon);
        worst = std::max(worst, std::abs(after.at("w/" + name)[i] - expected));
      }
    }
    EXPECT_LT(worst, 1e-6);  // float32 weights of about 1, and a few roundings of steps of 3e-3
  }

  static constexpr double kDecay = 0.1;
  double kBeta2 = TrainingOptions().beta2, kEpsilon = TrainingOptions().epsilon;
  fs::path folder_;
  std::unique_ptr<Graph> graph_;
  std::vector<std::string> notices_;
};

TEST_F(InitialLoad, TakesEveryBitAndBeginsAnewInStepsAndData) {
  const State saved = Train("a", 3, *graph_);
  Run run = Make(*graph_, 40, 7);
  const RunOrigin origin = Load(run, *graph_, "a");
  EXPECT_EQ(StateOf(run.session()), saved);
  EXPECT_EQ(origin.step, 3);
  EXPECT_EQ(origin.updates, 3);
  EXPECT_EQ(origin.path, (folder_ / "a/checkpoints/step-000000003").string());
  const CheckpointState state = run.trainer->State({});
  EXPECT_EQ(std::tuple(state.step, state.updates, state.samples, state.tokens, state.losses.count), std::tuple(0, 3, 0, 0, 0));
}

TEST_F(InitialLoad, TheNextStepIsAdamWsFourth) {
  const State saved = Train("a", 3, *graph_);
  Run run = Make(*graph_, 40, 7, 1e-3);
  Load(run, *graph_, "a/checkpoints/step-000000003");
  ExpectStep(run, saved, 3, 1e-3);
}

TEST_F(InitialLoad, ModelOnlyBeginsWithoutMoments) {
  State saved = Train("a", 3, *graph_);
  Run run = Make(*graph_, 40, 7, 1e-3);
  const RunOrigin origin = Load(run, *graph_, "a", /*model_only=*/true);
  EXPECT_EQ(origin.updates, 0);
  for (auto& [name, values] : saved) {
    if (name[0] != 'w') std::ranges::fill(values, 0.0f);
  }
  ASSERT_EQ(StateOf(run.session()), saved);
  ExpectStep(run, saved, 0, 1e-3);
}

// Masters in two halves, whose tie is in v.
TEST_F(InitialLoad, AnotherPrecisionTakesTheSameMastersAndMoments) {
  const State saved = Train("a", 3, *graph_);
  for (const bool model_only : {false, true}) {
    Run run = Make(*graph_, 40, 7, 1e-3, "bfloat16-weights");
    Load(run, *graph_, "a", model_only);
    for (const auto& [name, values] : StateOf(run.session())) {
      EXPECT_EQ(values, model_only && name[0] != 'w' ? std::vector<float>(values.size()) : saved.at(name)) << name;
    }
  }
}

TEST_F(InitialLoad, AWeightsFileGivesWeightsAlone) {
  Run from = Make(*graph_, 24, 3);
  for (int i = 0; i < 3; ++i) from.trainer->Step();
  SaveWeights(from.session(), folder_ / "weights.safetensors", 3);
  State saved = StateOf(from.session());
  for (const char* precision : {"float32", "bfloat16-weights"}) {
    Run run = Make(*graph_, 40, 7, 1e-3, precision);
    const RunOrigin origin = Load(run, *graph_, "weights.safetensors");
    EXPECT_EQ(std::pair(origin.step, origin.updates), std::pair(int64_t{3}, int64_t{0}));
    for (const auto& [name, values] : StateOf(run.session())) {
      EXPECT_EQ(values, name[0] != 'w' ? std::vector<float>(values.size()) : saved.at(name)) << name;
    }
  }
}

TEST_F(InitialLoad, AWeightsFileThatDoesNotFitIsRefusedInOneWord) {
  Run from = Make(*graph_, 24, 3);
  SaveWeights(from.session(), folder_ / "weights.safetensors", 3);
  auto tensors = ReadSafetensors(folder_ / "weights.safetensors").tensors;
  tensors["rotary.inv_freq"] = TensorData::FromFloats({2}, {1, 2});
  WriteSafetensors(folder_ / "more.safetensors", tensors);
  Run run = Make(*graph_, 40, 7);
  EXPECT_EQ(Load(run, *graph_, "more.safetensors").step, -1);
  ASSERT_EQ(notices_.size(), 1u);
  EXPECT_NE(notices_[0].find("1 tensors of '"), std::string::npos) << notices_[0];
  EXPECT_NE(notices_[0].find("rotary.inv_freq"), std::string::npos) << notices_[0];
  tensors["model.norm.weight"] = TensorData::FromFloats({2}, {1, 2});
  tensors.erase("model.embed_tokens.weight");
  WriteSafetensors(folder_ / "less.safetensors", tensors);
  const std::string words = Refused(*graph_, "less.safetensors");
  for (const char* part : {"(1 missing, 1 of another shape)", "model.embed_tokens.weight is missing", "model.norm.weight is [2], the model has [64]"}) {
    EXPECT_NE(words.find(part), std::string::npos) << words;
  }
}

TEST_F(InitialLoad, AnotherModelIsRefusedWithCounts) {
  Train("a", 1, *graph_);
  const std::string words = Refused(*Model("mixtral"), "a");
  for (const char* part : {"does not fit the model (", " missing, ", " of another shape, ", " not in the model)", "--names and --freeze", "\n  and "}) {
    EXPECT_NE(words.find(part), std::string::npos) << part << " in " << words;
  }
}

TEST_F(InitialLoad, WhatIsFrozenHereMustHaveBeenTheSameThere) {
  const auto frozen = Model("olmoe", {"model.norm.weight"});
  Train("trained", 1, *graph_);
  EXPECT_NE(Refused(*frozen, "trained").find("(1 frozen here and of other values there)"), std::string::npos) << Refused(*frozen, "trained");
  Train("still", 1, *graph_, /*rate=*/0);
  Run run = Make(*frozen, 24, 3);
  EXPECT_EQ(Load(run, *frozen, "still").step, 1);
  Train("frozen", 1, *frozen);
  EXPECT_NE(Refused(*graph_, "frozen").find("(1 missing)"), std::string::npos) << Refused(*graph_, "frozen");
  EXPECT_EQ(Load(run, *frozen, "frozen").step, 1);
}

TEST_F(InitialLoad, WhatIsFrozenHereMustBeTheSameInAWeightsFile) {
  const auto frozen = Model("olmoe", {"model.norm.weight"});
  for (const auto& [name, rate] : {std::pair("still.safetensors", 0.0), std::pair("trained.safetensors", 1e-2)}) {
    Run from = Make(*graph_, 24, 3, rate);
    from.trainer->Step();
    SaveWeights(from.session(), folder_ / name, 1);
  }
  Run run = Make(*frozen, 24, 3);
  Load(run, *frozen, "still.safetensors");
  EXPECT_NE(Refused(*frozen, "trained.safetensors").find("model.norm.weight is frozen here"), std::string::npos);
}

TEST_F(InitialLoad, ADamagedNewestIsPassedOverAndNoneIsAnError) {
  const State saved = Train("a", 1, *graph_);
  Train("a", 2, *graph_);
  const auto damage = [&](int64_t step) {
    const fs::path shard = folder_ / "a/checkpoints" / CheckpointName(step) / "state-00001-of-00001.safetensors";
    std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-5, std::ios::end);
    file.put('\x5a');
  };
  damage(2);
  Run run = Make(*graph_, 40, 7);
  EXPECT_EQ(Load(run, *graph_, "a").step, 1);
  EXPECT_EQ(StateOf(run.session()), saved);
  ASSERT_EQ(notices_.size(), 1u);
  EXPECT_NE(notices_[0].find("step-000000002"), std::string::npos) << notices_[0];
  EXPECT_THROW(Load(run, *graph_, "a/checkpoints/step-000000002"), Error) << "another one was asked for";
  damage(1);
  try {
    Load(run, *graph_, "a");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIoError);
    EXPECT_NE(std::string(error.what()).find("step-000000001"), std::string::npos) << error.what();
  }
}

TEST_F(InitialLoad, PlacesThatHoldNothingAreRefusedWithWhatToGive) {
  EXPECT_NE(Refused(*graph_, "nowhere").find("is not there"), std::string::npos);
  fs::create_directories(folder_ / "run");
  EXPECT_NE(Refused(*graph_, "run").find("holds no checkpoint"), std::string::npos);
  std::ofstream(folder_ / "run/weights.safetensors") << "x";
  EXPECT_NE(Refused(*graph_, "run").find("run/weights.safetensors' to begin with its weights alone"), std::string::npos);
  EXPECT_NE(Refused(*graph_, "run/weights.safetensors", ErrorCode::kIoError).find("nothing in"), std::string::npos);
  EXPECT_NE(Refused(*graph_, "text.txt", ErrorCode::kIoError).find("text.txt"), std::string::npos);
}

TEST_F(InitialLoad, ACheckpointSaysWhatItsRunBeganWith) {
  Train("a", 3, *graph_);
  Run run = Make(*graph_, 40, 7);
  const RunOrigin origin = Load(run, *graph_, "a");
  run.trainer->Step();
  CheckpointState state = run.trainer->State({});
  EXPECT_EQ(state.updates, 4);
  state.origin = origin;
  Checkpoints(folder_ / "b").Save(run.session(), state);
  const auto read = ReadIndex(folder_ / "b" / CheckpointName(1)).state;
  ASSERT_TRUE(read.origin.has_value());
  EXPECT_EQ(ToText(*read.origin), "step 3 of '" + origin.path + "': weights and moments after 3 updates");
  EXPECT_FALSE(ReadIndex(folder_ / "a/checkpoints" / CheckpointName(3)).state.origin.has_value());
}

}  // namespace
}  // namespace weir
