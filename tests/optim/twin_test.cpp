// weir verify's own runs: the float64 step against PyTorch's, twin against streamed.
#include "optim/twin.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/parameter.h"
#include "optim/float64_step.h"
#include "tests/optim/same_bits.h"

namespace weir {
namespace {

std::map<std::string, std::vector<float>> Weights(const Graph& graph) {
  std::map<std::string, std::vector<float>> weights;
  for (const Value* p : graph.ValuesWithRole(Role::kParameter)) weights[p->name] = LoadParameter(graph, *p);
  return weights;
}

// PyTorch's float64 run has its constants (epsilons, attention and router scales) in double, the exported file in
// float32: relative 6e-8 of what they scale, a few of them in a row. Float32 arithmetic is off by 5e-7 and more.
constexpr double kConstants = 2e-7;

TEST_P(EveryExport, Float64StepIsPyTorchsInFloat64) {
  const auto graph = LoadFamily(GetParam());
  const std::string folder = std::string(WEIR_SOURCE_DIR "/models/") + GetParam();
  const Safetensors reference = ReadSafetensors(folder + "/reference.safetensors"), truth = ReadSafetensors(folder + "/float64.safetensors");
  const TensorData& ids = *reference.tensors.at("input_ids");
  const TrainingSession::MicroBatch batch{ids.AsInts(), reference.tensors.at("labels")->AsInts()};
  const Float64Step step = RunFloat64(*graph, {}, ids.dims()[0], ids.dims()[1], {&batch, 1}, Weights(*graph));
  EXPECT_NEAR(step.loss, truth.tensors.at("loss")->AsDoubles()[0], kConstants * step.loss);
  double worst = 0;
  int compared = 0;
  for (const Value* parameter : graph->ValuesWithRole(Role::kParameter)) {
    const auto& gradient = step.gradients.at(parameter->name);
    for (const ParameterPiece& piece : SourcePieces(*parameter, true)) {
      const auto expected = truth.tensors.at("grad." + piece.tensor)->AsDoubles();
      double distance = 0, norm = 0;
      ForEachElement(piece, ToDims(parameter->shape), [&](int64_t from, int64_t to) {
        distance += std::pow(gradient[static_cast<size_t>(to)] - expected[static_cast<size_t>(from)], 2);
        norm += std::pow(expected[static_cast<size_t>(from)], 2);
      });
      worst = std::max(worst, std::sqrt(distance / norm));
      ++compared;
    }
  }
  EXPECT_GT(compared, 10);
  EXPECT_LT(worst, kConstants);
}

TwinOptions Streamed() {
  TwinOptions options;
  options.sequence = 13;
  options.streamed.strip = 64;
  options.streamed.recompute = "layer";
  options.streamed.host_budget = int64_t{1} << 30;
  options.streamed.offload = {.bucket = 500, .slots = 2};
  options.streamed.stream_dispatch = StreamDispatchOptions{.chunk_tokens = 9};
  return options;
}

TEST_P(EveryExport, StreamedEqualsItsTwinAndIsNearFloat64) {
  const auto graph = LoadFamily(GetParam());
  for (const int64_t ranks : {1, 2}) {
    TwinOptions options = Streamed();
    options.streamed.layout = {.world = ranks, .expert_parallel = ranks};
    const auto all = CompareTwin(*graph, options);
    for (const Comparison& c : all) EXPECT_TRUE(c.ok()) << GetParam() << " " << ranks << " ranks: " << c.tensor << " " << c.measure << " " << c.difference;
    const size_t parameters = graph->ValuesWithRole(Role::kParameter).size();
    EXPECT_EQ(all.size(), 1 + 2 * parameters + 1 + parameters);
  }
}

// Four ranks, two to a sequence; the head's weight over ranks, which the twin has whole.
TEST(Twin, SequencesAndTheHeadMayBeSpreadOverRanks) {
  for (const char* family : {"mixtral", "gpt_oss"}) {
    TwinOptions options = Streamed();
    options.sequence = 14;
    options.batch = 1;
    options.streamed.layout = {.world = 4, .expert_parallel = 2, .vocabulary_parallel = 2, .context_parallel = 2};
    for (const Comparison& c : CompareTwin(*LoadFamily(family), options)) {
      EXPECT_TRUE(c.ok()) << family << ": " << c.tensor << " " << c.measure << " " << c.difference;
    }
  }
}

TEST(Twin, CanFail) {
  const auto graph = LoadFamily("olmoe");
  TwinOptions options = Streamed();
  options.gradient_tolerance = 1e-9;  // float32 cannot
  EXPECT_TRUE(std::ranges::any_of(CompareTwin(*graph, options), [](const Comparison& c) { return !c.ok(); }));
  options.input_ids = {1, 2, 3};
  EXPECT_THROW(CompareTwin(*graph, options), Error);
}

TEST(Twin, BitsAreComparedNotValues) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(CompareBits("a", std::vector<float>{1, nan}, std::vector<float>{1, nan}).ok());
  EXPECT_EQ(CompareBits("a", std::vector<float>{0, 1, 2}, std::vector<float>{-0.0f, 1, 2.5}).difference, 2);
  EXPECT_NE(CompareBits("a", std::vector<float>{2}, std::vector<float>{2.5}).measure.find("by up to 0.5"), std::string::npos);
  EXPECT_FALSE(CompareBits("a", std::vector<float>{2}, std::vector<float>{2, 3}).ok());
}

}  // namespace
}  // namespace weir
