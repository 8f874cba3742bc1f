// Checkpoints: SAV rows of public reports, by id where one applies.
#include "optim/checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "graph/error.h"
#include "graph_passes/pipeline.h"
#include "importer/importer.h"
#include "optim/checkpoint_writer.h"
#include "optim/trainer.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<Graph> Model(const std::string& family) {
  auto graph = ReadOnnx(std::string(WEIR_SOURCE_DIR "/models/") + family + "/dynamo18_batched_mm_sdpa.onnx");
  PassManager passes;
  Canonicalize(*graph, {}, passes);
  return graph;
}

using Bytes = std::vector<std::vector<float>>;

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() / ("weir_checkpoint_" + std::string(info->name()) + std::to_string(getpid()));
    fs::create_directories(folder_);
    std::ofstream text(folder_ / "text.txt");
    for (int i = 0; i < 60; ++i) text << "line " << i * i << " of a small text\n";
    text.close();
    graph_ = Model("olmoe");
    std::vector<std::unique_ptr<TokenFile>> files = OpenTokenFiles(folder_ / "text.txt", {});
    data_ = std::make_unique<DataLoader>(std::move(files), DataOptions{.sequence = kSequence, .seed = 3, .vocabulary = 307});
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::unique_ptr<Trainer> MakeTrainer(int64_t accumulation = 2, int64_t micro_batch = 2, const TrainingOptions& training = {}) {
    TrainerOptions options;
    options.training = training;
    options.sequence = kSequence;
    options.micro_batch = micro_batch;
    options.grad_accumulation = accumulation;
    options.steps = 10;
    options.schedule.peak = 3e-3;
    options.schedule.warmup_steps = 3;
    PassManager passes;
    return std::make_unique<Trainer>(*graph_, options, *data_, passes);
  }
  static Bytes StateOf(Trainer& trainer) {
    Bytes bytes;
    for (const Value* p : trainer.session().parameters()) {
      bytes.push_back(trainer.session().Data(*p));
      for (const char* moment : {"m", "v"}) bytes.push_back(trainer.session().Moment(*p, moment));
    }
    return bytes;
  }
  void ExpectFiveAndFiveAreTen(const std::function<std::unique_ptr<Trainer>()>& make) {
    auto whole = make();
    std::vector<StepRecord> expected;
    while (!whole->Done()) expected.push_back(whole->Step());
    ASSERT_GT(10 * 96, data_->tokens_per_epoch() / 2);

    auto first = make();
    for (int i = 0; i < 5; ++i) first->Step();
    checkpoints().Save(first->session(), first->State(identity_));
    first.reset();

    auto second = make();
    std::vector<std::string> notices;
    const auto state = checkpoints().LoadLatest(second->session(), identity_, notices);
    ASSERT_TRUE(state.has_value());
    EXPECT_TRUE(notices.empty());
    second->Resume(*state);
    for (size_t i = 5; !second->Done(); ++i) {
      const StepRecord record = second->Step();
      EXPECT_EQ(record.step, expected[i].step);
      EXPECT_EQ(record.loss, expected[i].loss) << record.step;
      EXPECT_EQ(record.grad_norm, expected[i].grad_norm) << record.step;
      EXPECT_EQ(record.learning_rate, expected[i].learning_rate) << record.step;
      EXPECT_EQ(record.tokens, expected[i].tokens) << record.step;
    }
    EXPECT_EQ(StateOf(*second), StateOf(*whole));
  }
  static std::string Message(const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  fs::path Newest() const { return checkpoints().List().back(); }
  Checkpoints checkpoints() const { return Checkpoints(folder_ / "checkpoints"); }

  static constexpr const char* kShard = "state-00001-of-00001.safetensors";
  static constexpr int64_t kSequence = 24;
  const std::map<std::string, std::string> identity_ = {{"seed", "3"}};
  fs::path folder_;
  std::unique_ptr<Graph> graph_;
  std::unique_ptr<DataLoader> data_;
};

// Ten steps at 96 tokens cross the end of an epoch of 60 short lines more than once. OPT-07: with weights of bfloat16, whose masters' low
// halves and moments are in host memory, too.
TEST_F(CheckpointTest, FiveAndFiveStepsAreTenByteForByte) {
  TrainingOptions streamed;
  streamed.precision = "bfloat16-weights";
  streamed.offload = {.bucket = 1000, .slots = 2, .resident = 3000};
  streamed.recompute = "layer";
  streamed.host_budget = 1 << 30;
  for (const TrainingOptions& training : {TrainingOptions{}, streamed}) {
    SCOPED_TRACE(training.precision);
    ExpectFiveAndFiveAreTen([&] { return MakeTrainer(2, 2, training); });
    fs::remove_all(folder_ / "checkpoints");
  }
}

TEST_F(CheckpointTest, TheNextSampleIsReadWhateverTheBatchIsSplitInto) {
  auto trainer = MakeTrainer(/*accumulation=*/2, /*micro_batch=*/2);
  trainer->Step();
  auto other = MakeTrainer(/*accumulation=*/1, /*micro_batch=*/1);
  other->Resume(trainer->State(identity_));
  other->Step();
  EXPECT_EQ(other->State(identity_).samples, 5);
}

TEST_F(CheckpointTest, ADamagedNewestOneIsPassedOverInWords) {
  auto trainer = MakeTrainer();
  trainer->Step();
  checkpoints().Save(trainer->session(), trainer->State(identity_));
  const Bytes expected = StateOf(*trainer);
  const auto damages = std::vector<std::pair<std::string, std::function<void(const fs::path&)>>>{
      {"checksum", [](const fs::path& c) {
         std::fstream file(c / kShard, std::ios::in | std::ios::out | std::ios::binary);
         file.seekp(-5, std::ios::end);
         file.put('\x5a');
       }},
      {"bytes, expected", [](const fs::path& c) {
         fs::resize_file(c / kShard, fs::file_size(c / kShard) - 100);
       }},
      {"cannot be read (No such file or directory), expected ", [](const fs::path& c) { fs::remove(c / kShard); }},
      {"checkpoint.json is missing", [](const fs::path& c) { fs::remove(c / "checkpoint.json"); }},
      {"damaged or of another version", [](const fs::path& c) { fs::resize_file(c / "checkpoint.json", 40); }},
      {"was changed since it was written", [](const fs::path& c) {
         std::ifstream in(c / "checkpoint.json");
         std::string text((std::istreambuf_iterator<char>(in)), {});
         text.replace(text.find("\"samples\": "), 12, "\"samples\": 9");
         std::ofstream(c / "checkpoint.json") << text;
       }},
  };
  for (const auto& [words, damage] : damages) {
    auto next = MakeTrainer();
    next->Step();
    next->Step();
    checkpoints().Save(next->session(), next->State(identity_));
    damage(Newest());
    auto resumed = MakeTrainer();
    std::vector<std::string> notices;
    const auto state = checkpoints().LoadLatest(resumed->session(), identity_, notices);
    ASSERT_TRUE(state.has_value()) << words;
    EXPECT_EQ(state->step, 1) << words;
    ASSERT_EQ(notices.size(), 1u) << words;
    EXPECT_NE(notices[0].find(words), std::string::npos) << notices[0];
    EXPECT_EQ(StateOf(*resumed), expected) << words;
    fs::remove_all(Newest());
  }
}

// A run that begins anew would write over what can still be saved.
TEST_F(CheckpointTest, WhenNoneCanBeReadTheRunDoesNotBeginAnew) {
  auto trainer = MakeTrainer();
  for (int i = 0; i < 2; ++i) {
    trainer->Step();
    checkpoints().Save(trainer->session(), trainer->State(identity_));
    fs::resize_file(Newest() / kShard, 10);
  }
  std::vector<std::string> notices;
  const std::string message = Message([&] { checkpoints().LoadLatest(trainer->session(), identity_, notices); });
  EXPECT_NE(message.find("none of the 2 checkpoints"), std::string::npos) << message;
  EXPECT_NE(message.find("step-000000001"), std::string::npos) << message;
  EXPECT_NE(message.find("step-000000002"), std::string::npos) << message;
}

TEST_F(CheckpointTest, WhatWasPassedOverIsSetAsideAndRotatesNothingOut) {
  auto trainer = MakeTrainer();
  for (int i = 0; i < 3; ++i) {
    trainer->Step();
    checkpoints().Save(trainer->session(), trainer->State(identity_));
  }
  checkpoints().SetAside(1);
  ASSERT_EQ(checkpoints().List().size(), 1u);
  EXPECT_TRUE(fs::exists(folder_ / "checkpoints" / "set-aside-step-000000003" / kShard));
  auto again = MakeTrainer();
  for (int i = 0; i < 2; ++i) again->Step();
  checkpoints().Save(again->session(), again->State(identity_));
  checkpoints().Rotate(1, 0);
  ASSERT_EQ(checkpoints().List().size(), 1u);
  EXPECT_EQ(Newest().filename(), "step-000000002");
  checkpoints().SetAside(1);
  for (const char* name : {"set-aside-step-000000002", "set-aside-2-step-000000002"}) EXPECT_TRUE(fs::exists(folder_ / "checkpoints" / name / kShard)) << "none is lost";
}

TEST_F(CheckpointTest, FiftyStepsInARowThatAreNotFiniteEndTheRun_OPT14) {
  TrainerOptions options;
  options.sequence = kSequence;
  options.micro_batch = 1;
  options.steps = 100;
  options.non_finite = NonFinitePolicy::kSkip;
  PassManager passes;
  Trainer trainer(*graph_, options, *data_, passes);
  EXPECT_FALSE(trainer.Skipping());
  const Value& norm = *trainer.session().parameters().back();
  std::vector<float> values = trainer.session().Data(norm);
  std::ranges::fill(values, std::nanf(""));
  trainer.session().SetData(norm, values);
  for (int i = 0; i < 49; ++i) EXPECT_TRUE(trainer.Step().skipped);
  EXPECT_TRUE(trainer.Skipping());
  EXPECT_NE(Message([&] { trainer.Step(); }).find("50 steps in a row"), std::string::npos);
}

TEST_F(CheckpointTest, WhatAKilledRunLeftIsNoCheckpoint) {
  auto trainer = MakeTrainer();
  const fs::path half = folder_ / "checkpoints" / ".writing-step-000000007";
  fs::create_directories(half);
  std::ofstream(half / kShard) << "half";
  std::vector<std::string> notices;
  EXPECT_FALSE(checkpoints().LoadLatest(trainer->session(), identity_, notices).has_value());
  EXPECT_TRUE(checkpoints().List().empty());
  checkpoints().RemoveUnfinished();
  EXPECT_FALSE(fs::exists(half));
}

TEST_F(CheckpointTest, AnotherRunsCheckpointIsRefusedAndChangesNothing) {
  auto trainer = MakeTrainer();
  trainer->Step();
  checkpoints().Save(trainer->session(), trainer->State(identity_));
  auto other = MakeTrainer();
  const Bytes before = StateOf(*other);
  std::vector<std::string> notices;
  EXPECT_NE(Message([&] { checkpoints().LoadLatest(other->session(), {{"seed", "4"}}, notices); }).find("seed: 3 then, 4 now"),
            std::string::npos);
  EXPECT_EQ(StateOf(*other), before);

  const auto foreign = Model("mixtral");
  TrainerOptions options;
  options.sequence = kSequence;
  PassManager passes;
  Trainer mixtral(*foreign, options, *data_, passes);
  const std::string refused = Message([&] { checkpoints().LoadLatest(mixtral.session(), identity_, notices); });
  for (const char* part : {"is of another model", "--names and --freeze", " more"}) EXPECT_NE(refused.find(part), std::string::npos) << refused;
  EXPECT_LE(std::count(refused.begin(), refused.end(), '\n'), 12) << refused;
}

TEST_F(CheckpointTest, RotationKeepsTheNewestAndTheMilestones) {
  auto trainer = MakeTrainer();
  for (int i = 0; i < 7; ++i) {
    trainer->Step();
    checkpoints().Save(trainer->session(), trainer->State(identity_));
    checkpoints().Rotate(/*keep=*/2, /*keep_every=*/3);
  }
  std::vector<std::string> names;
  for (const fs::path& path : checkpoints().List()) names.push_back(path.filename().string());
  EXPECT_EQ(names, (std::vector<std::string>{"step-000000003", "step-000000006", "step-000000007"}));
}

// A run killed after the checkpoint of step 2 has written on: what came after is cut, and the half line too.
TEST_F(CheckpointTest, MetricsGoOnWhereTheCheckpointWas) {
  const fs::path file = folder_ / "metrics.jsonl";
  {
    MetricsLog log(file);
    for (int64_t step = 1; step <= 3; ++step) log.Write(StepRecord{.step = step, .loss = 0.1 * static_cast<double>(step), .tokens = 7 * step});
  }
  std::ofstream(file, std::ios::app) << R"({"step": 4, "lo)";
  std::vector<StepRecord> records;
  ContinueMetrics(file, 2, {.step = [&](const StepRecord& record) { records.push_back(record); }, .evaluation = {}});
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[1].loss, 0.1 * 2);
  EXPECT_EQ(records[1].tokens, 14);
  MetricsLog(file).Write(StepRecord{.step = 3});
  std::ifstream in(file);
  int lines = 0;
  for (std::string line; std::getline(in, line);) ++lines;
  EXPECT_EQ(lines, 3);
  EXPECT_TRUE(ReadMetrics(folder_ / "none.jsonl", 5).steps.empty());
}

// Steps go on while a checkpoint is written: its line comes after theirs, and stays when theirs are cut.
TEST_F(CheckpointTest, MetricsKeepTheLineOfTheCheckpointThatTheyGoOnFrom) {
  const fs::path file = folder_ / "metrics.jsonl";
  {
    MetricsLog log(file);
    for (int64_t step = 1; step <= 4; ++step) {
      log.Write(StepRecord{.step = step});
      log.Write(CheckpointRecord{.step = step - 1, .bytes = 5});
    }
  }
  std::vector<int64_t> saved;
  ContinueMetrics(file, 2, {.step = [](const StepRecord&) {}, .evaluation = {}, .checkpoint = [&](int64_t step) { saved.push_back(step); }});
  EXPECT_EQ(saved, (std::vector<int64_t>{0, 1, 2}));
  saved.clear();
  ContinueMetrics(file, 2, {.step = [](const StepRecord&) {}, .evaluation = {}, .checkpoint = [&](int64_t step) { saved.push_back(step); }});
  EXPECT_EQ(saved, (std::vector<int64_t>{0, 1, 2})) << "once each in the file, too";
  EXPECT_EQ(ReadMetrics(file, 4).steps.size(), 2u);
}

TEST_F(CheckpointTest, MetricsThatWereRemovedAreAnError) {
  const fs::path file = folder_ / "metrics.jsonl";
  MetricsLog log(file);
  log.Write(StepRecord{.step = 1});
  fs::remove(file);
  EXPECT_NE(Message([&] { log.Write(StepRecord{.step = 2}); }).find("was removed while the run writes it"), std::string::npos);
}

// What is in the way of a checkpoint and is none is nobody's to remove.
TEST_F(CheckpointTest, AFileWithACheckpointsNameIsRefusedAndStays) {
  auto trainer = MakeTrainer();
  trainer->Step();
  fs::create_directories(folder_ / "run");
  const fs::path file = folder_ / "run" / CheckpointName(1);
  std::ofstream(file) << "mine";
  const Checkpoints checkpoints(folder_ / "run");
  EXPECT_NE(Message([&] { checkpoints.CheckNames(); }).find("is no folder but has a checkpoint's name; move it away"), std::string::npos);
  EXPECT_NE(Message([&] { checkpoints.Save(trainer->session(), trainer->State(identity_)); }).find("is a file where the checkpoint is to be"), std::string::npos);
  EXPECT_EQ(ReadText(file), "mine");
  EXPECT_FALSE(fs::exists(folder_ / "run" / UnfinishedName(1)));
}

TEST_F(CheckpointTest, AFolderThatWasRemovedIsNotMadeAgain) {
  auto trainer = MakeTrainer();
  trainer->Step();
  CheckpointWriter writer(trainer->session(), folder_ / "run/checkpoints");
  fs::remove_all(folder_ / "run");
  EXPECT_NE(Message([&] { writer.Start(trainer->State(identity_)); }).find("was the run's folder removed?"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder_ / "run"));
}

// A log never keeps a run from going on, nor loses what is behind a bad line.
TEST_F(CheckpointTest, MetricsOutliveALineThatIsNoneOfTheirs) {
  const fs::path file = folder_ / "metrics.jsonl";
  MetricsLog(file).Write(StepRecord{.step = 1});
  std::ofstream(file, std::ios::app) << "garbage\n{\"step\": \"five\"}\n";
  MetricsLog(file).Write(StepRecord{.step = 2});
  int steps = 0;
  ContinueMetrics(file, 2, {.step = [&](const StepRecord&) { ++steps; }, .evaluation = {}});
  EXPECT_EQ(steps, 2);
  EXPECT_EQ(ReadMetrics(file, 2).steps.size(), 2u);
}

TEST_F(CheckpointTest, MetricsOfALongRunAreReadThinned) {
  const fs::path file = folder_ / "metrics.jsonl";
  MetricsLog log(file);
  for (int64_t step = 1; step <= 100; ++step) log.Write(StepRecord{.step = step});
  log.Write(CheckpointRecord{.step = 100, .bytes = 5});
  EXPECT_EQ(ReadMetrics(file, 100).steps.size(), 100u);
  std::vector<int64_t> steps;
  for (const StepRecord& record : ReadMetrics(file, 100, 8).steps) steps.push_back(record.step);
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 17, 33, 49, 65, 81, 97}));
}

TEST_F(CheckpointTest, WhatIsNotFiniteIsNeverSaved) {
  auto trainer = MakeTrainer();
  trainer->Step();
  checkpoints().Save(trainer->session(), trainer->State(identity_));
  trainer->Step();
  const Value& parameter = *trainer->session().parameters().back();
  for (const bool moment : {true, false}) {
    std::vector<float> values = moment ? trainer->session().Moment(parameter, "v") : trainer->session().Data(parameter);
    const std::vector<float> before = values;
    values[values.size() / 2] = moment ? std::numeric_limits<float>::infinity() : std::nanf("");
    if (moment) trainer->session().SetMoment(parameter, "v", values);
    else trainer->session().SetData(parameter, values);
    EXPECT_NE(Message([&] { checkpoints().Save(trainer->session(), trainer->State(identity_)); }).find("holds NaN or infinity after step 2"),
              std::string::npos);
    if (moment) trainer->session().SetMoment(parameter, "v", before);
  }
  ASSERT_EQ(checkpoints().List().size(), 1u);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "checkpoints"), {}), 1) << "nothing half written";
}

TEST_F(CheckpointTest, AFolderThatCannotBeWrittenIsAnErrorAndLeavesNothing) {
  auto trainer = MakeTrainer();
  std::ofstream(folder_ / "checkpoints") << "a file where the folder should be";
  EXPECT_NE(Message([&] { checkpoints().Save(trainer->session(), trainer->State(identity_)); }).find("cannot create"),
            std::string::npos);
}

}  // namespace
}  // namespace weir
