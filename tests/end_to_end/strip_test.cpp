// Whole training steps of real models with the head cut into strips: every parameter byte as
// without.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "importer/importer.h"
#include "importer/safetensors.h"
#include "optim/training_session.h"

namespace weir {
namespace {

namespace fs = std::filesystem;
const fs::path kModels = WEIR_SOURCE_DIR "/models";

struct Results {
  std::vector<double> scalars;
  std::vector<std::vector<float>> tensors;
};

Results Steps(const Graph& canonical, const NamedTensors& batch, int64_t strip) {
  TrainingOptions options;
  options.strip = strip;
  PassManager passes;
  const Dims dims = batch.at("input_ids")->dims();
  TrainingSession session(canonical, options, dims[0], dims[1], {}, passes);
  TrainingSession::MicroBatch tokens{batch.at("input_ids")->AsInts(), batch.at("labels")->AsInts()};
  TrainingSession::MicroBatch reversed = tokens;
  std::ranges::reverse(reversed.labels);
  Results run;
  for (int step = 1; step <= 2; ++step) {
    const StepResult result = session.ComputeGradients(std::vector{tokens, reversed});
    run.scalars.insert(run.scalars.end(), {result.loss, result.grad_norm});
    session.Update(1e-3, step);
  }
  for (const Value* parameter : session.parameters()) {
    for (const auto& span : {session.Data(*parameter), session.Gradient(*parameter),
                             session.Moment(*parameter, "v")}) {
      run.tensors.emplace_back(span.begin(), span.end());
    }
  }
  return run;
}

class Strips : public testing::TestWithParam<const char*> {};

// NUM-05: strips are summed in float32 in one order; the gradient norm among the scalars has the same bits, not just 1e-6.
TEST_P(Strips, ChangeNoBitOfATrainingStep) {
  const fs::path folder = kModels / GetParam();
  const Safetensors names = ReadSafetensors(folder / "weights.safetensors");
  const Safetensors reference = ReadSafetensors(folder / "reference.safetensors");
  CanonicalizeOptions options;
  options.names = &names.tensors;
  PassManager passes;
  const auto graph = ReadOnnx(folder / "dynamo23_batched_mm_eager.onnx");
  Canonicalize(*graph, options, passes);
  const Results whole = Steps(*graph, reference.tensors, 0),
                strips = Steps(*graph, reference.tensors, 256);
  EXPECT_EQ(whole.scalars, strips.scalars);
  ASSERT_EQ(whole.tensors.size(), strips.tensors.size());
  for (size_t i = 0; i < whole.tensors.size(); ++i) {
    ASSERT_EQ(whole.tensors[i].size(), strips.tensors[i].size());
    EXPECT_EQ(
        std::memcmp(whole.tensors[i].data(), strips.tensors[i].data(), whole.tensors[i].size() * 4),
        0)
        << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Strips, testing::Values("mixtral", "gpt_oss"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace weir
