// Training on two GPUs: PyTorch's gradients, the same bits twice and whatever the knobs.
#include <cmath>

#include "graph/error.h"
#include "tests/end_to_end/rank_launch.h"
#include "tests/kernels/gpu_ranks.h"

namespace weir {
namespace {

// Everything that promises the same bits, one after the other.
void ExpectKnobsChangeNoBit(Launch launch, const std::string& precision) {
  TrainingOptions options;
  options.precision = precision;
  options.deterministic = true;
  options.unit_rows = launch.unit_rows = 5;
  options.token_weights = !Stored(launch.family, launch.file).weights.empty();
  if (launch.expert_parallel > 1) options.stream_dispatch = StreamDispatchOptions{};
  options.layout = {.world = 2, .expert_parallel = launch.expert_parallel, .context_parallel = launch.context_parallel};
  launch.world = 2;
  launch.knobs = [&](TrainingOptions& chosen) { chosen = options; };
  const Outcome twin = RunLaunch(launch);
  const auto compare = [&](const std::string& what) {
    ExpectSame(RunLaunch(launch), twin,
               StrCat(launch.family, ", ", precision, ", E_p ", launch.expert_parallel, ", C ", launch.context_parallel, ", ", what));
  };
  compare("again");
  for (const auto& [chunks, alpha] : {std::pair{3, 1.1}, {16, 1.0}}) {
    options.stream_dispatch = {.chunk_tokens = 1, .max_chunks = chunks, .lambda = 1, .alpha = alpha, .min_rows = 1, .max_foreign = 2};
    compare(StrCat(chunks, " chunks"));
  }
  options.reduce_beside = true;
  compare("sums beside backward");
  options.shard_optimizer = true;
  compare("sharded optimizer");
  options.shard_parameters = "weights";
  compare("sharded weights");
  options.shard_parameters = "all";
  compare("sharded weights and gradients");
  options.strip = 64;
  options.recompute = "layer";
  compare("strips and recompute");
  options.layout.vocabulary_parallel = 2;
  compare("head over both");
  options.head_gradient = "shard";
  compare("head's gradient over both");
  options.host_budget = int64_t{1} << 30;
  options.offload = {.bucket = 1000, .slots = 2, .resident = 0};
  compare("boundaries and moments on the host");

  launch.steps = 1;
  const Outcome first = RunLaunch(launch);
  if (precision == "float32") return ExpectReference(first, launch.family, launch.file);
  const double loss = Stored(launch.family, launch.file).loss;
  EXPECT_NEAR(first.losses[0], loss, 0.004 * loss) << launch.family;
}

class TwoGpus : public testing::TestWithParam<std::tuple<const char*, int64_t, int64_t, const char*>> {};
INSTANTIATE_TEST_SUITE_P(Models, TwoGpus,
                         testing::Combine(testing::Values("mixtral", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v3"), testing::Values(1, 2),
                                          testing::Values(1, 2), testing::Values("float32", "bfloat16")),
                         [](const auto& info) {
                           return StrCat(std::get<0>(info.param), "_Ep", std::get<1>(info.param), "_C", std::get<2>(info.param), "_",
                                         std::get<3>(info.param));
                         });

TEST_P(TwoGpus, TrainWithPyTorchsGradientsAndTheSameBits) {
  WEIR_ON_GPUS(2);
  const auto& [family, expert_parallel, context_parallel, precision] = GetParam();
  ExpectKnobsChangeNoBit({.family = family, .expert_parallel = expert_parallel, .context_parallel = context_parallel, .device = DeviceKind::kCuda},
                         precision);
}

TEST(TwoGpusTraining, WeighsTokensAsPyTorchDoes) {
  WEIR_ON_GPUS(2);
  for (const char* precision : {"float32", "bfloat16"}) {
    ExpectKnobsChangeNoBit({.family = "mixtral", .file = "weighted", .device = DeviceKind::kCuda}, precision);
  }
}

// The test itself, where there are no GPUs.
TEST(CpuRanks, TrainWithPyTorchsGradientsAndTheSameBits) {
  for (const char* family : {"mixtral", "gpt_oss"}) {
    for (const int64_t expert_parallel : {1, 2}) {
      for (const int64_t context_parallel : {1, 2}) {
        ExpectKnobsChangeNoBit({.family = family, .expert_parallel = expert_parallel, .context_parallel = context_parallel}, "float32");
      }
    }
  }
}

TEST(CpuRanks, WeighTokensAsPyTorchDoes) {
  for (const char* family : {"mixtral", "gpt_oss"}) {
    ExpectKnobsChangeNoBit({.family = family, .expert_parallel = 2, .context_parallel = 2, .file = "weighted"}, "float32");
  }
}

TEST(CpuRanks, SumsBesideBackwardNeedStepsOfOneMicroBatch) {
  const auto beside = [](TrainingOptions& options) { options.reduce_beside = true; };
  EXPECT_THROW(RunLaunch({.world = 2, .micro_batches = 2, .knobs = beside}), Error);
  EXPECT_EQ(RunLaunch({.world = 1, .steps = 1, .micro_batches = 2, .knobs = beside}).losses.size(), 1u);  // nothing to sum over
}

// NaN on rank 1 only: both know before anything is updated.
void ExpectBothKnowOfNan(DeviceKind kind) {
  const StoredBatch& batch = Stored("mixtral");
  RunOnHosts(kind, 2, [&](Communicator& host) {
    PassManager passes;
    Placement place = kind;
    place.ordinal = static_cast<int>(host.rank());
    TrainingOptions options;
    options.layout = {.world = 2, .expert_parallel = 2};
    options.stream_dispatch = StreamDispatchOptions{};
    TrainingSession session(*batch.graph, options, batch.rows, batch.length, {}, passes, place, &host);
    std::vector<float> poisoned = session.Data(*session.parameters()[0]);
    std::fill(poisoned.begin(), poisoned.end(), std::nanf(""));
    if (host.rank() == 1) session.SetData(*session.parameters()[0], poisoned);
    const TrainingSession::MicroBatch whole{batch.ids, batch.labels};
    EXPECT_FALSE(session.ComputeGradients({&whole, 1}).finite) << "rank " << host.rank();
  });
}
TEST(TwoGpusTraining, AgreeThatOneIsNotFinite) {
  WEIR_ON_GPUS(2);
  ExpectBothKnowOfNan(DeviceKind::kCuda);
}
TEST(CpuRanks, AgreeThatOneIsNotFinite) { ExpectBothKnowOfNan(DeviceKind::kCpu); }

}  // namespace
}  // namespace weir
