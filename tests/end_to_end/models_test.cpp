// Every exported variant of every family against its stored PyTorch references (models/README.md).
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>

#include <nlohmann/json.hpp>

#include "graph/text.h"
#include "importer/importer.h"
#include "importer/safetensors.h"
#include "optim/verify.h"

namespace weir {
namespace {

namespace fs = std::filesystem;
const fs::path kModels = WEIR_SOURCE_DIR "/models";
const char* const kFamilies[] = {"mixtral", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v3"};

std::vector<fs::path> Variants(const std::string& family) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(kModels / family)) {
    if (entry.path().extension() == ".onnx") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::unique_ptr<Graph> Load(const fs::path& model, const char* weights = "weights.safetensors") {
  const Safetensors names = ReadSafetensors(model.parent_path() / weights);
  CanonicalizeOptions options;
  options.names = &names.tensors;
  PassManager passes;
  auto graph = ReadOnnx(model);
  Canonicalize(*graph, options, passes);
  return graph;
}

void ExpectAllOk(const std::vector<Comparison>& comparisons, size_t at_least) {
  EXPECT_GE(comparisons.size(), at_least) << "too few tensors were compared";
  for (const Comparison& c : comparisons) {
    EXPECT_TRUE(c.ok()) << c.tensor << ": " << c.difference << " > " << c.tolerance << " (" << c.measure << ")";
  }
}

struct Variant {
  std::string family;
  fs::path path;
};
void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.path.filename(); }
std::vector<Variant> AllVariants() {
  std::vector<Variant> all;
  for (const char* family : kFamilies) {
    for (const fs::path& path : Variants(family)) all.push_back({family, path});
  }
  return all;
}

double RelativeL2(const std::vector<float>& got, const std::vector<double>& want) {
  double distance = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    distance += std::pow(got[i] - want[i], 2);
    norm += want[i] * want[i];
  }
  return std::sqrt(distance / norm);
}

class EveryVariant : public testing::TestWithParam<Variant> {};

TEST_P(EveryVariant, MatchesPyTorch) {
  const auto graph = Load(GetParam().path);
  const Safetensors reference = ReadSafetensors(kModels / GetParam().family / "reference.safetensors");
  ExpectAllOk(CompareWithReference(*graph, reference.tensors, reference.metadata, {}), 40);
}

std::string VariantName(const testing::TestParamInfo<Variant>& info) {
  return info.param.family + "_" + info.param.path.stem().string();
}
INSTANTIATE_TEST_SUITE_P(Models, EveryVariant, testing::ValuesIn(AllVariants()), VariantName);

class EveryFamily : public testing::TestWithParam<const char*> {
 protected:
  fs::path Folder() const { return kModels / GetParam(); }
};

TEST_P(EveryFamily, AllVariantsHaveOneCanonicalText) {
  std::string first;
  for (const fs::path& path : Variants(GetParam())) {
    const std::string text = CanonicalText(*Load(path));
    if (first.empty()) first = text;
    EXPECT_EQ(text, first) << path.filename();
  }
}

TEST_P(EveryFamily, MatchesPyTorchOnTheUnevenBatchOfEight) {
  const auto graph = Load(Variants(GetParam())[0]);
  const Safetensors batch8 = ReadSafetensors(Folder() / "batch8.safetensors");
  ExpectAllOk(CompareWithReference(*graph, batch8.tensors, batch8.metadata, {}), 20);
}

TEST_P(EveryFamily, FollowsPyTorchFor30Steps) {
  const auto graph = Load(Variants(GetParam())[0]);
  const Safetensors trajectory = ReadSafetensors(Folder() / "trajectory.safetensors");
  ExpectAllOk(CompareTrajectory(*graph, trajectory.tensors, {}), 20);
}

// Our float32 error against the float64 run is at most twice PyTorch's own.
TEST_P(EveryFamily, Float32ErrorIsAtMostTwicePyTorchs) {
  const auto graph = Load(Variants(GetParam())[0]);
  const Safetensors reference = ReadSafetensors(Folder() / "reference.safetensors");
  const Safetensors truth = ReadSafetensors(Folder() / "float64.safetensors");
  const auto precision = nlohmann::json::parse(std::ifstream(Folder() / "precision.json"));
  const auto& ids = *reference.tensors.at("input_ids");
  const ModelResults got = RunModel(*graph, ids.AsInts(), reference.tensors.at("labels")->AsInts(), ids.dims()[0], ids.dims()[1]);
  const auto logits = truth.tensors.at("logits")->AsDoubles();
  double largest = 0;
  for (size_t i = 0; i < logits.size(); ++i) largest = std::max(largest, std::abs(got.logits[i] - logits[i]));
  EXPECT_LE(largest, 2 * precision["fp32_vs_fp64_logits_max_abs"].get<double>()) << "logits";
  for (const auto& [name, theirs] : precision["fp32_vs_fp64_grad_relL2"].items()) {
    const auto want = truth.tensors.at("grad." + name)->AsDoubles();
    const auto& mine = got.gradients.at(name);
    EXPECT_LE(RelativeL2(mine, want), 2 * theirs.get<double>()) << name;
  }
}

// The genai builder's com.microsoft graph of the same weights: packed projections, key-value cache inputs.
TEST(GenaiModels, Float32MatchesPyTorch) {
  const auto graph = Load(kModels / "genai/gpt_oss_fp32_cpu/model.onnx", "hf_weights.safetensors");
  const Safetensors reference = ReadSafetensors(kModels / "gpt_oss/reference.safetensors");
  ExpectAllOk(CompareWithReference(*graph, reference.tensors, reference.metadata, {}), 100);
}

// Rounding the weights to bfloat16 is all that separates this export from the float32 truth. PyTorch's own bfloat16
// run (precision.json) rounds the activations too, so it bounds the logits from above. A gradient feels the rounding of
// every weight on its way down as well: about 2^-9 per matrix, in quadrature over the 20 matrices of two layers and
// their transposes, amplified by the normalisations; PyTorch's figure for the same parameter, doubled, covers both.
TEST(GenaiModels, BFloat16WeightsStayWithinTheirRounding) {
  const auto graph = Load(kModels / "genai/gpt_oss_bf16_cuda/model.onnx", "hf_weights.safetensors");
  const Safetensors reference = ReadSafetensors(kModels / "gpt_oss/reference.safetensors");
  const Safetensors truth = ReadSafetensors(kModels / "gpt_oss/float64.safetensors");
  const auto bf16 = nlohmann::json::parse(std::ifstream(kModels / "gpt_oss/precision.json"))["bf16"];
  const auto& ids = *reference.tensors.at("input_ids");
  const ModelResults got = RunModel(*graph, ids.AsInts(), reference.tensors.at("labels")->AsInts(), ids.dims()[0], ids.dims()[1]);
  EXPECT_LE(RelativeL2(got.logits, truth.tensors.at("logits")->AsDoubles()), bf16["logits_relL2"].get<double>());
  for (const auto& [name, theirs] : bf16["grad_relL2"].items()) {
    const auto want = truth.tensors.at("grad." + name)->AsDoubles();
    EXPECT_LE(RelativeL2(got.gradients.at(name), want), 2 * theirs.get<double>()) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EveryFamily, testing::ValuesIn(kFamilies), [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace weir
