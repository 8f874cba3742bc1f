// What a trainer does with a step whose loss leaps. NUM-04 of public reports: such a step is in no mean, no moment and no counter.
#include <gtest/gtest.h>

#include "importer/importer.h"
#include "optim/trainer.h"
#include "tests/optim/data_folder.h"

namespace weir {
namespace {

class SpikePolicy : public Data {
 protected:
  static constexpr int64_t kSequence = 8;

  // A document of 8 tokens per sample: `odd` at place kAt, all others alike.
  void WriteDocuments(int64_t count, int64_t plain, int64_t odd, int64_t at) const {
    std::ofstream file(folder_ / "a.jsonl");
    for (int64_t d = 0; d < count; ++d) {
      file << "{\"input_ids\": [";
      for (int64_t i = 0; i < kSequence; ++i) file << (i > 0 ? ", " : "") << ((d == at ? odd : plain) * 31 + i * i * 7) % 307;
      file << "]}\n";
    }
  }
  struct Run {
    std::unique_ptr<DataLoader> data;
    std::unique_ptr<Trainer> trainer;
  };
  Run Make(int64_t steps, double z, double rate) const {
    auto graph = ReadOnnx(WEIR_SOURCE_DIR "/models/olmoe/dynamo18_batched_mm_sdpa.onnx");
    PassManager passes;
    Canonicalize(*graph, {}, passes);
    TrainerOptions options;
    options.sequence = kSequence;
    options.micro_batch = 1;
    options.steps = steps;
    options.schedule.kind = "constant";
    options.schedule.peak = rate;
    options.skip_loss_z = z;
    Run run;
    run.data = std::make_unique<DataLoader>(OpenTokenFiles(folder_ / "a.jsonl", {}), DataOptions{.sequence = kSequence, .shuffle = false, .pack = false, .vocabulary = 307});
    run.trainer = std::make_unique<Trainer>(*graph, options, *run.data, passes);
    return run;
  }
  static std::vector<std::vector<float>> StateOf(Trainer& trainer) {
    std::vector<std::vector<float>> state;
    for (const Value* p : trainer.session().parameters()) {
      state.push_back(trainer.session().Data(*p));
      for (const char* moment : {"m", "v"}) state.push_back(trainer.session().Moment(*p, moment));
    }
    return state;
  }
  // The loss of document `id` before any step.
  double LossOf(int64_t id) const {
    WriteDocuments(1, id, id, 0);
    return Make(1, 0, 0).trainer->Step().loss;
  }
};

TEST_F(SpikePolicy, ASkippedStepLeavesNoTraceAndTheNextIsNoSpike_NUM04) {
  int64_t least = 1, most = 1;
  std::map<int64_t, double> losses;
  for (int64_t id = 1; id <= 12; ++id) losses[id] = LossOf(id);
  for (const auto& [id, loss] : losses) {
    if (loss < losses[least]) least = id;
    if (loss > losses[most]) most = id;
  }
  ASSERT_GT(losses[most] - losses[least], 0.1);
  constexpr int64_t kBefore = LossStatistics::kLeast + 2;
  WriteDocuments(kBefore + 3, least, most, kBefore);
  Run run = Make(kBefore + 3, 3, 1e-6);
  for (int64_t i = 0; i < kBefore; ++i) EXPECT_FALSE(run.trainer->Step().spike) << i;
  const CheckpointState before = run.trainer->State({});
  const auto bytes = StateOf(*run.trainer);
  const StepRecord odd = run.trainer->Step();
  EXPECT_TRUE(odd.spike && odd.skipped);
  EXPECT_NEAR(odd.loss, losses[most], 0.01);
  const CheckpointState after = run.trainer->State({});
  EXPECT_EQ(after.losses.mean, before.losses.mean);
  EXPECT_EQ(after.losses.variance, before.losses.variance);
  EXPECT_EQ(after.losses.count, before.losses.count);
  EXPECT_EQ(after.losses.spikes, 1);
  EXPECT_EQ(after.updates, before.updates);
  EXPECT_EQ(after.step, before.step + 1);
  EXPECT_EQ(StateOf(*run.trainer), bytes);
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(run.trainer->Step().spike) << "an ordinary one after it";
  EXPECT_EQ(run.trainer->State({}).losses.spikes, 0);
  EXPECT_EQ(run.trainer->State({}).updates, before.updates + 2);
}

}  // namespace
}  // namespace weir
