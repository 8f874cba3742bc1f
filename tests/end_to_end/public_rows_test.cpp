// Small checks of rows of public reports that are about whole steps of stored models.
#include <gtest/gtest.h>

#include <algorithm>

#include "graph/error.h"
#include "tests/end_to_end/rank_launch.h"

namespace weir {
namespace {

// OPT-25: sums that run beside backward change no bit of gradients, and are PyTorch's.
TEST(PublicRows, SumsBesideBackwardAreThoseAfterIt_OPT25) {
  for (const int64_t world : {2, 4}) {
    for (const int64_t experts : {int64_t{1}, world}) {
      Launch launch{.world = world, .expert_parallel = experts};
      const Outcome after = RunLaunch(launch);
      launch.knobs = [](TrainingOptions& options) { options.reduce_beside = true; };
      ExpectSame(RunLaunch(launch), after, StrCat(world, " ranks, experts over ", experts));
      launch.steps = 1;
      ExpectReference(RunLaunch(launch), "mixtral");
    }
  }
}

// OPT-20: beside matrices of bfloat16 with masters in two halves, float32 vectors and routers are in every map: all move, each by about the
// learning rate in its first step, as AdamW does where decay is off.
TEST(PublicRows, EveryParameterOfAMixedModelMoves_OPT20) {
  constexpr double kRate = 1e-3;
  for (const char* family : {"mixtral", "gpt_oss", "deepseek_v3"}) {
    const StoredBatch& batch = Stored(family);
    TrainingOptions options;
    options.precision = "bfloat16-weights";
    options.weight_decay = 0;
    options.offload = {.bucket = 1000, .slots = 2};
    PassManager passes;
    TrainingSession session(*batch.graph, options, batch.rows, batch.length, {}, passes);
    std::map<std::string, std::vector<float>> before;
    int halves = 0, whole = 0;
    for (const Value* p : session.parameters()) {
      before[p->name] = session.Data(*p);
      (p->dtype == DType::kBFloat16 ? halves : whole) += 1;
    }
    EXPECT_GT(halves, 5) << family;
    EXPECT_GT(whole, 3) << family;
    const TrainingSession::MicroBatch micro{batch.ids, batch.labels};
    session.ComputeGradients({&micro, 1});
    session.Update(kRate, 1);
    for (const Value* p : session.parameters()) {
      const auto after = session.Data(*p), gradient = session.Gradient(*p);
      int64_t moved = 0, pushed = 0;
      for (size_t i = 0; i < after.size(); ++i) {
        if (std::abs(gradient[i]) < 1e-6f) continue;  // epsilon is 1e-8: these move by kRate, against their gradients
        ++pushed;
        const double step = static_cast<double>(after[i]) - static_cast<double>(before[p->name][i]);
        moved += std::abs(step + (gradient[i] > 0 ? kRate : -kRate)) < 0.02 * kRate ? 1 : 0;
      }
      EXPECT_GT(pushed, 0) << family << " " << p->name;
      EXPECT_EQ(moved, pushed) << family << " " << p->name;
    }
  }
}

}  // namespace
}  // namespace weir
