// Memory-saving rewrites of whole models change no bit of loss, gradients, parameters and moments.
#include "tests/optim/same_bits.h"

namespace weir {
namespace {

TEST_P(EveryExport, RecomputationChangesNoBit) {
  const auto graph = LoadFamily(GetParam());
  const RunBits twin = BitsOfRun(*graph, {});
  for (const char* keep : {"none", "attention"}) {
    for (const int64_t strip : {0, 64}) {
      TrainingOptions options;
      options.recompute = "layer";
      options.keep = keep;
      options.strip = strip;
      ExpectSameBits(BitsOfRun(*graph, options), twin, std::string(GetParam()) + " keep " + keep);
    }
  }
}

TEST_P(EveryExport, RecomputationNeedsLessMemory) {
  const auto graph = LoadFamily(GetParam());
  const auto arena = [&](const std::string& recompute, const std::string& keep) {
    TrainingOptions options;
    options.recompute = recompute;
    options.keep = keep;
    options.strip = 64;
    return MakePlan(*TrainingGraphOf(*graph, options, 1, 4096), DeviceKind::kCpu).arena_bytes;
  };
  EXPECT_LT(arena("layer", "none"), arena("none", "none") * 3 / 4);
  EXPECT_LT(arena("layer", "attention"), arena("none", "none") * 3 / 4);
}

// Two layers: the budget holds the first boundary, or both; one that holds none is an error. CKO-10
TEST_P(EveryExport, OffloadedBoundariesChangeNoBit) {
  const auto graph = LoadFamily(GetParam());
  const RunBits twin = BitsOfRun(*graph, {});
  const int64_t all = int64_t{1} << 30;
  TrainingOptions options;
  options.strip = 64;
  options.host_budget = all;
  const auto training = TrainingGraphOf(*graph, options, 2, 13);
  const int64_t boundaries = MakePlan(*training, DeviceKind::kCpu).host_arena_bytes;
  ASSERT_GT(boundaries, 0);
  for (const char* recompute : {"none", "layer"}) {
    options.recompute = recompute;
    options.host_budget = 1;
    EXPECT_THROW(TrainingGraphOf(*graph, options, 2, 13), Error);
    for (const int64_t budget : {boundaries / 2, boundaries * 3 / 4, all}) {
      options.host_budget = budget;
      const int64_t used = MakePlan(*TrainingGraphOf(*graph, options, 2, 13), DeviceKind::kCpu).host_arena_bytes;
      EXPECT_EQ(used, budget == all ? boundaries : boundaries / 2);
      ExpectSameBits(BitsOfRun(*graph, options), twin, StrCat("host budget ", budget, ", recompute ", recompute));
    }
  }
}

// Kept attention outputs beside the boundaries: half of what both need holds all boundaries and one layer's, or none.
TEST_P(EveryExport, StashedAttentionChangesNoBit) {
  const auto graph = LoadFamily(GetParam());
  const RunBits twin = BitsOfRun(*graph, {});
  TrainingOptions options;
  options.recompute = "layer";
  options.keep = "attention";
  options.host_budget = int64_t{1} << 30;
  const auto host = [&](const char* stash) {
    options.stash = stash;
    return MakePlan(*TrainingGraphOf(*graph, options, 2, 13), DeviceKind::kCpu).host_arena_bytes;
  };
  const int64_t boundaries = host("boundaries"), all = host("attention");
  ASSERT_GT(all, boundaries);
  for (const int64_t budget : {all, all - 1, boundaries + (all - boundaries) / 2}) {
    options.host_budget = budget;
    EXPECT_EQ(host("attention"), budget == all ? all : boundaries + (all - boundaries) / 2);
    ExpectSameBits(BitsOfRun(*graph, options), twin, StrCat("host budget ", budget));
  }
}

TEST_P(EveryExport, OffloadedMomentsChangeNoBit) {
  const auto graph = LoadFamily(GetParam());
  const RunBits twin = BitsOfRun(*graph, {});
  for (const int64_t bucket : {int64_t{1000}, int64_t{1000000}, int64_t{1} << 40}) {
    for (const int64_t slots : {1, 2, 3}) {
      TrainingOptions options;
      options.offload = {.bucket = bucket, .slots = slots, .resident = slots == 2 ? 5000 : 0};
      ExpectSameBits(BitsOfRun(*graph, options), twin, StrCat("bucket ", bucket, ", slots ", slots));
      const Plan plan = MakePlan(*TrainingGraphOf(*graph, options, 2, 13), DeviceKind::kCpu);
      int64_t staging = 0, moments = 0, resident = 0;
      for (const PlannedBuffer& buffer : plan.buffers) {
        if (buffer.term == "staging") staging = std::max(staging, buffer.bytes);
        if (buffer.term == "optimizer") (buffer.memory == Memory::kHost ? moments : resident) += buffer.bytes;
      }
      EXPECT_GT(staging, 0);
      EXPECT_LE(staging, 16 * slots * bucket);
      EXPECT_GT(moments, 0);
      EXPECT_LE(resident, options.offload.resident);
      EXPECT_EQ(resident > 0, options.offload.resident > 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EveryExport, testing::ValuesIn(kFamilies),
                         [](const auto& info) { return std::string(info.param); });

// State is on its way from the norm on; a step that ends there leaves nothing behind.
TEST(StreamedMoments, AStepThatIsSkippedOrWrittenOverLeavesNothingOnItsWay) {
  const auto graph = LoadFamily("mixtral");
  const auto run = [&](const TrainingOptions& options) {
    PassManager passes;
    TrainingSession session(*graph, options, 2, 13, {}, passes);
    std::vector<TrainingSession::MicroBatch> batch(1);
    for (int64_t i = 0; i < 26; ++i) {
      batch[0].input_ids.push_back(i * 7 % session.vocabulary());
      batch[0].labels.push_back(i);
    }
    session.ComputeGradients(batch);  // skipped
    session.ComputeGradients(batch);
    session.Update(0.01, 1);
    session.ComputeGradients(batch);  // its moments are written over
    for (const Value* p : session.parameters()) session.SetMoment(*p, "m", std::vector<float>(session.Moment(*p, "m").size(), 0.5f));
    session.MeasureGradients();
    session.Update(0.01, 2);
    return BitsOfRun(session);
  };
  TrainingOptions options;
  options.offload = {.bucket = 1000, .slots = 3, .resident = 0};
  ExpectSameBits(run(options), run({}), "streamed");
}

TEST(StreamedMoments, AnUpdateNeedsMeasuredGradients) {
  const auto graph = LoadFamily("mixtral");
  TrainingOptions options;
  options.offload = {.bucket = 1000, .slots = 2, .resident = 0};
  PassManager passes;
  TrainingSession session(*graph, options, 2, 13, {}, passes);
  BitsOfRun(session);
  EXPECT_THROW(session.Update(0.01, 4), Error);
}

}  // namespace
}  // namespace weir
