// Exported models on the GPU against their stored PyTorch references, with the CPU's tolerances (models/README.md).
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>

#include <nlohmann/json.hpp>

#include "backend/device.h"
#include "graph/dtype.h"
#include "graph/error.h"
#include "importer/importer.h"
#include "importer/safetensors.h"
#include "optim/float64_step.h"
#include "optim/training_session.h"
#include "optim/verify.h"

namespace weir {
namespace {

namespace fs = std::filesystem;
const fs::path kModels = WEIR_SOURCE_DIR "/models";
const char* const kFamilies[] = {"mixtral", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v3"};

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

TEST(CudaFamilies, MatchPyTorchsWeightedMean) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no GPU on this machine";
  for (const char* family : {"mixtral", "gpt_oss"}) {
    const Safetensors weighted = ReadSafetensors(kModels / family / "weighted.safetensors");
    ExpectAllOk(CompareWithReference(*FirstVariant(family), weighted.tensors, weighted.metadata, {}, DeviceKind::kCuda), 40);
  }
}

double RelativeL2(const std::vector<float>& got, const std::vector<float>& want) {
  double distance = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    distance += std::pow(static_cast<double>(got[i]) - want[i], 2);
    norm += std::pow(static_cast<double>(want[i]), 2);
  }
  return std::sqrt(distance / norm);
}

// Relative errors of the gradients of a family, in bfloat16 and from weights rounded to it, against float64 on those weights: ours, and
// PyTorch's own on an H200 (precision.json).
struct GradientErrors {
  double ours = 0, pytorchs = 0;  // root mean square over parameters
  double our_worst = 0, pytorchs_worst = 0;
};

GradientErrors BFloat16Errors(const std::string& family) {
  const fs::path folder = kModels / family;
  const Safetensors reference = ReadSafetensors(folder / "reference.safetensors");
  const auto theirs = nlohmann::json::parse(std::ifstream(folder / "precision.json"))["bf16"];
  const auto& ids = *reference.tensors.at("input_ids");
  const auto graph = FirstVariant(family);
  PassManager passes;
  const TrainingOptions options{.precision = "bfloat16"};
  TrainingSession session(*graph, options, ids.dims()[0], ids.dims()[1], {}, passes, DeviceKind::kCuda);
  std::map<std::string, std::vector<float>> weights;
  for (const Value* parameter : session.parameters()) {
    std::vector<float>& rounded = weights[parameter->name] = session.Data(*parameter);
    for (float& weight : rounded) weight = BFloat16ToFloat(FloatToBFloat16(weight));
    session.SetData(*parameter, rounded);
  }
  const TrainingSession::MicroBatch batch{ids.AsInts(), reference.tensors.at("labels")->AsInts()};
  const Float64Step truth = RunFloat64(*graph, {}, ids.dims()[0], ids.dims()[1], {&batch, 1}, weights);
  EXPECT_NEAR(truth.loss, theirs["loss_float64_of_rounded_weights"].get<double>(), 1e-6 * truth.loss) << "not PyTorch's problem";
  const double loss = session.ComputeGradients({&batch, 1}).loss;
  EXPECT_LE(std::abs(loss - truth.loss), std::max(0.001 * loss, 1.1 * std::abs(theirs["loss_bf16"].get<double>() - truth.loss)));
  GradientErrors errors;
  int compared = 0;
  for (const Value* parameter : session.parameters()) {
    const auto& exact = truth.gradients.at(parameter->name);
    const auto want = ToSourceLayout(*parameter, std::vector<float>(exact.begin(), exact.end()), true);
    for (const auto& [name, got] : ToSourceLayout(*parameter, session.Gradient(*parameter), true)) {
      const double ours = RelativeL2(got, want.at(name)), pytorchs = theirs["grad_relL2"].at(name).get<double>();
      errors.our_worst = std::max(errors.our_worst, ours);
      errors.pytorchs_worst = std::max(errors.pytorchs_worst, pytorchs);
      errors.ours += ours * ours;
      errors.pytorchs += pytorchs * pytorchs;
      ++compared;
    }
  }
  EXPECT_GE(compared, 20) << family;
  errors.ours = std::sqrt(errors.ours / compared);
  errors.pytorchs = std::sqrt(errors.pytorchs / compared);
  return errors;
}

// Where rounding flips a near tie of the router, a family of so few tokens is off by several per cent, in either program and each in
// families of its own; without a flip by about one per cent. So the families are taken together: no worse than PyTorch's.
TEST(CudaFamilies, BFloat16IsAsNearTheTruthAsPyTorchs) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no GPU on this machine";
  double ours = 0, pytorchs = 0, our_best = 1, our_worst = 0, pytorchs_worst = 0;
  for (const std::string family : kFamilies) {
    const GradientErrors errors = BFloat16Errors(family);
    std::cout << family << ": gradients in bfloat16 are off by " << errors.ours << ", PyTorch's by " << errors.pytorchs << "\n";
    ours += errors.ours * errors.ours;
    pytorchs += errors.pytorchs * errors.pytorchs;
    our_best = std::min(our_best, errors.ours);
    our_worst = std::max(our_worst, errors.our_worst);
    pytorchs_worst = std::max(pytorchs_worst, errors.pytorchs_worst);
  }
  EXPECT_LE(ours, pytorchs);
  EXPECT_LE(our_best, 0.015) << "no family without a flipped route";
  EXPECT_LE(our_worst, 1.5 * pytorchs_worst);
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

INSTANTIATE_TEST_SUITE_P(Models, CudaPlan, testing::ValuesIn(kFamilies),
                         [](const auto& info) { return std::string(info.param); });
INSTANTIATE_TEST_SUITE_P(Models, CudaFamily, testing::ValuesIn(kFamilies),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace weir
