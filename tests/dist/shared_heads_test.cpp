// A model of one head on two ranks, which both hold it and deal the rows of queries: float64's loss and gradients, and the
// same bits whatever the knobs.
#include <algorithm>
#include <cmath>

#include "graph/op_schema.h"
#include "graph/parameter.h"
#include "optim/float64_step.h"
#include "tests/end_to_end/rank_launch.h"
#include "tests/kernels/gpu_ranks.h"

namespace weir {
namespace {

// OLMoE's four heads of 16 channels as one of 64; of it the first 16 are rotated.
void JoinHeads(Graph& graph) {
  int64_t joined = 0;
  Value* one = graph.AddConstant("one_head", TensorData::FromInts({4}, {0, 0, 1, 64}));
  for (const auto& node : graph.nodes()) {
    if (node->op() == "Reshape" && node->in(1)->data != nullptr && node->in(1)->data->AsInts() == std::vector<int64_t>{0, 0, 4, 16}) {
      graph.SetInput(node.get(), 1, one);
      ++joined;
    }
    InferNode(*node);
  }
  ASSERT_GE(joined, 6) << "q, k and v of two layers";
}

struct Step {
  double loss = 0;
  std::map<std::string, std::vector<float>> gradients;  // by the framework's names
};

Step Truth() {
  const StoredBatch& batch = Stored("olmoe");
  const auto graph = Clone(*batch.graph);
  JoinHeads(*graph);
  std::map<std::string, std::vector<float>> weights;
  for (const Value* p : graph->ValuesWithRole(Role::kParameter)) weights[p->name] = LoadParameter(*graph, *p);
  const TrainingSession::MicroBatch micro{batch.ids, batch.labels};
  const Float64Step step = RunFloat64(*graph, {}, batch.rows, batch.length, {&micro, 1}, weights);
  Step by_source{.loss = step.loss, .gradients = {}};
  for (const Value* p : graph->ValuesWithRole(Role::kParameter)) {
    const auto& whole = step.gradients.at(p->name);
    const std::vector<float> floats(whole.begin(), whole.end());
    by_source.gradients.merge(ToSourceLayout(*p, floats, true));
  }
  return by_source;
}

// In bfloat16 another expert may be chosen: the loss alone is compared.
void ExpectOneHeadOnTwoRanks(DeviceKind device, const std::string& precision) {
  Launch launch{.family = "olmoe", .world = 2, .context_parallel = 2, .edit = JoinHeads, .device = device};
  TrainingOptions options;
  options.precision = precision;
  options.deterministic = true;
  options.layout = {.world = 2, .context_parallel = 2};
  launch.knobs = [&](TrainingOptions& chosen) { chosen = options; };
  const Outcome twin = RunLaunch(launch);
  const auto compare = [&](const std::string& what) { ExpectSame(RunLaunch(launch), twin, precision + ", " + what); };
  compare("again");
  options.strip = 64;
  options.recompute = "layer";
  compare("strips and recompute");
  options.keep = "attention";
  options.host_budget = int64_t{1} << 30;
  options.offload = {.bucket = 1000, .slots = 2, .resident = 0};
  compare("attention kept in host memory");

  const bool narrow = precision != "float32";
  for (const bool deterministic : {true, false}) {
    options.deterministic = deterministic;
    launch.steps = 1;
    const Outcome first = RunLaunch(launch);
    static const Step truth = Truth();
    EXPECT_NEAR(first.losses[0], truth.loss, (narrow ? 0.004 : 1e-6) * truth.loss) << precision;
    EXPECT_GT(truth.gradients.size(), 20u);
    for (const auto& [name, gradient] : truth.gradients) {
      if (narrow) break;
      EXPECT_LT(RelativeL2(first.gradients.at(name), gradient), 1e-5) << name << (deterministic ? ", deterministic" : "");
    }
  }
}

TEST(SharedHeads, OneHeadOnTwoRanks) { ExpectOneHeadOnTwoRanks(DeviceKind::kCpu, "float32"); }

class TwoGpusShareAHead : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Precisions, TwoGpusShareAHead, testing::Values("float32", "bfloat16"), [](const auto& info) { return std::string(info.param); });

TEST_P(TwoGpusShareAHead, OneHeadOnTwoRanks) {
  WEIR_ON_GPUS(2);
  ExpectOneHeadOnTwoRanks(DeviceKind::kCuda, GetParam());
}

}  // namespace
}  // namespace weir
