// Exported models on the GPU against their stored PyTorch references, with the CPU's tolerances (models/README.md).
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include <nlohmann/json.hpp>

#include "backend/device.h"
#include "graph/error.h"
#include "importer/importer.h"
#include "importer/safetensors.h"
#include "optim/training_session.h"
#include "optim/verify.h"

namespace weir {
namespace {

namespace fs = std::filesystem;
const fs::path kModels = WEIR_SOURCE_DIR "/models";

std::unique_ptr<Graph> Load(const fs::path& model, const char* weights) {
  const Safetensors names = ReadSafetensors(model.parent_path() / weights);
  CanonicalizeOptions options;
  options.names = &names.tensors;
  PassManager passes;
  auto graph = ReadOnnx(model);
  Canonicalize(*graph, options, passes);
  return graph;
}

std::unique_ptr<Graph> FirstVariant(const std::string& family) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(kModels / family)) {
    if (entry.path().extension() == ".onnx") files.push_back(entry.path());
  }
  return Load(*std::min_element(files.begin(), files.end()), "weights.safetensors");
}

void ExpectAllOk(const std::vector<Comparison>& comparisons, size_t at_least) {
  EXPECT_GE(comparisons.size(), at_least) << "too few tensors were compared";
  for (const Comparison& c : comparisons) {
    EXPECT_TRUE(c.ok()) << c.tensor << ": " << c.difference << " > " << c.tolerance << " (" << c.measure << ")";
  }
}

// Ops of a training step of the model without a CUDA kernel, and why.
std::set<std::string> MissingKernels(const std::string& family, const TrainingOptions& options = {}) {
  const auto graph = FirstVariant(family);
  PassManager passes;
  BuildTrainingGraph(*graph, options, passes);
  SpecializeShapes(*graph, 2, 16);
  std::set<std::string> missing;
  for (const auto& node : graph->nodes()) {
    const Kernel* kernel = FindKernel(DeviceKind::kCuda, *node->schema);
    const std::string reason = kernel == nullptr ? "no kernel" : kernel->unsupported ? kernel->unsupported(*node) : "";
    if (!reason.empty()) missing.insert(node->op() + ": " + reason);
  }
  return missing;
}

class CudaFamily : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (CudaDeviceCount() == 0) GTEST_SKIP() << "no GPU on this machine";
    const auto missing = MissingKernels(GetParam());
    if (!missing.empty()) GTEST_SKIP() << missing.size() << " ops without a CUDA kernel, such as " << *missing.begin();
  }
};

TEST_P(CudaFamily, MatchesPyTorch) {
  const Safetensors reference = ReadSafetensors(kModels / GetParam() / "reference.safetensors");
  ExpectAllOk(CompareWithReference(*FirstVariant(GetParam()), reference.tensors, reference.metadata, {}, DeviceKind::kCuda), 40);
}

TEST_P(CudaFamily, MatchesPyTorchOnTheUnevenBatchOfEight) {
  const Safetensors batch8 = ReadSafetensors(kModels / GetParam() / "batch8.safetensors");
  ExpectAllOk(CompareWithReference(*FirstVariant(GetParam()), batch8.tensors, batch8.metadata, {}, DeviceKind::kCuda), 20);
}

TEST_P(CudaFamily, FollowsPyTorchFor30Steps) {
  const Safetensors trajectory = ReadSafetensors(kModels / GetParam() / "trajectory.safetensors");
  ExpectAllOk(CompareTrajectory(*FirstVariant(GetParam()), trajectory.tensors, {}, DeviceKind::kCuda), 20);
}

// bfloat16 training with float32 masters beside PyTorch's own bfloat16 run (precision.json): the loss against the float64
// loss of the rounded weights, the gradients against the float64 gradients. Theirs are measured on rounded weights; ours feel
// that rounding too, about as much again as a run's, so three times their worst parameter bounds each of ours.
TEST_P(CudaFamily, BFloat16IsAsNearTheTruthAsPyTorchs) {
  const fs::path folder = kModels / GetParam();
  const Safetensors reference = ReadSafetensors(folder / "reference.safetensors");
  const Safetensors truth = ReadSafetensors(folder / "float64.safetensors");
  const auto theirs = nlohmann::json::parse(std::ifstream(folder / "precision.json"))["bf16"];
  const auto& ids = *reference.tensors.at("input_ids");
  const auto graph = FirstVariant(GetParam());
  PassManager passes;
  TrainingSession session(*graph, {.precision = "bfloat16"}, ids.dims()[0], ids.dims()[1], {}, passes, DeviceKind::kCuda);
  const TrainingSession::MicroBatch batch{ids.AsInts(), reference.tensors.at("labels")->AsInts()};
  const double loss = session.ComputeGradients({&batch, 1}).loss;
  EXPECT_NEAR(loss, theirs["loss_float64_of_rounded_weights"].get<double>(), 0.002 * loss);
  double bound = 0;
  for (const auto& [name, error] : theirs["grad_relL2"].items()) bound = std::max(bound, 3 * error.get<double>());
  int compared = 0;
  for (const Value* parameter : session.parameters()) {
    for (const auto& [name, got] : ToSourceLayout(*parameter, session.Gradient(*parameter), true)) {
      const auto want = truth.tensors.at("grad." + name)->AsDoubles();
      double distance = 0, norm = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        distance += std::pow(got[i] - want[i], 2);
        norm += want[i] * want[i];
      }
      EXPECT_LE(std::sqrt(distance / norm), bound) << name;
      ++compared;
    }
  }
  EXPECT_GE(compared, 20);
}

// No sum depends on timing: two runs give the same bits.
TEST_P(CudaFamily, ARunRepeatsBitForBit) {
  const auto graph = FirstVariant(GetParam());
  const Safetensors reference = ReadSafetensors(kModels / GetParam() / "reference.safetensors");
  const auto& ids = *reference.tensors.at("input_ids");
  const auto run = [&] {
    return RunModel(*graph, ids.AsInts(), reference.tensors.at("labels")->AsInts(), ids.dims()[0], ids.dims()[1], DeviceKind::kCuda);
  };
  const ModelResults first = run(), second = run();
  EXPECT_EQ(first.logits, second.logits);
  EXPECT_EQ(first.loss, second.loss);
  EXPECT_EQ(first.gradients, second.gradients);
}

// Needs no GPU.
class CudaPlan : public testing::TestWithParam<const char*> {};
TEST_P(CudaPlan, EveryTrainingOpHasAKernel) {
  for (const char* precision : {"float32", "bfloat16"}) {
    for (const char* recompute : {"none", "layer"}) {
      EXPECT_EQ(MissingKernels(GetParam(), {.precision = precision, .recompute = recompute}), std::set<std::string>{}) << precision;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaPlan, testing::Values("mixtral", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v3"),
                         [](const auto& info) { return std::string(info.param); });
INSTANTIATE_TEST_SUITE_P(Models, CudaFamily, testing::Values("mixtral", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace weir
