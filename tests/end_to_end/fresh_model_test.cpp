// A model of random weights as torch.onnx exports it: equal gains and biases stored once (models/qwen2_moe_fresh).
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "importer/importer.h"
#include "importer/safetensors.h"
#include "optim/export.h"
#include "optim/verify.h"

namespace weir {
namespace {

namespace fs = std::filesystem;
const fs::path kFolder = WEIR_SOURCE_DIR "/models/qwen2_moe_fresh";
const fs::path kModel = kFolder / "dynamo18_batched_mm_sdpa.onnx";

std::unique_ptr<Graph> Load(const fs::path& model, const NamedTensors* names = nullptr) {
  PassManager passes;
  auto graph = ReadOnnx(model);
  Canonicalize(*graph, {.names = names, .freeze = {}}, passes);
  return graph;
}

// PyTorch's gradient and step of every norm and bias by itself.
TEST(FreshModel, MatchesPyTorchUnderEveryName) {
  const Safetensors names = ReadSafetensors(kFolder / "weights.safetensors");
  const Safetensors reference = ReadSafetensors(kFolder / "reference.safetensors");
  const auto graph = Load(kModel, &names.tensors);
  std::set<std::string> trained;
  for (const Value* parameter : graph->ValuesWithRole(Role::kParameter)) trained.insert(parameter->name);
  EXPECT_EQ(trained.size(), names.tensors.size());
  for (const auto& [name, tensor] : names.tensors) EXPECT_TRUE(trained.contains(name)) << name;
  const auto comparisons = CompareWithReference(*graph, reference.tensors, reference.metadata, {});
  EXPECT_EQ(comparisons.size(), 2 + 3 * names.tensors.size());  // logits, loss; gradient and two steps of each
  for (const Comparison& c : comparisons) EXPECT_TRUE(c.ok()) << c.tensor << ": " << c.difference;
}

// The trained norms differ, are stored under their modules' names and go back into the file as tensors of their own.
TEST(FreshModel, IsSavedAndExportedWithEveryTensor) {
  const fs::path folder = fs::temp_directory_path() / ("weir_fresh_" + std::to_string(getpid()));
  fs::create_directories(folder);
  const Safetensors reference = ReadSafetensors(kFolder / "reference.safetensors");
  const auto& ids = *reference.tensors.at("input_ids");
  const auto graph = Load(kModel);
  PassManager passes;
  TrainingSession session(*graph, {}, ids.dims()[0], ids.dims()[1], {}, passes);
  const TrainingSession::MicroBatch batch{ids.AsInts(), reference.tensors.at("labels")->AsInts()};
  ASSERT_TRUE(session.ComputeGradients({&batch, 1}).finite);
  session.Update(1e-2, 1);
  SaveWeights(session, folder / "weights.safetensors", 1);
  const Safetensors weights = ReadSafetensors(folder / "weights.safetensors");
  std::set<std::vector<float>> norms;
  for (const char* norm : {"layers.0.input_layernorm", "layers.0.post_attention_layernorm", "layers.1.input_layernorm",
                           "layers.1.post_attention_layernorm", "norm"}) {
    norms.insert(weights.tensors.at(std::string("model.model.") + norm + ".weight")->AsFloats());
  }
  EXPECT_EQ(norms.size(), 5u);

  ExportModel(*graph, kModel, weights.tensors, folder / "out.onnx");
  const auto out = Load(folder / "out.onnx");
  EXPECT_TRUE(out->notices.empty());
  for (const auto& [name, tensor] : weights.tensors) {
    ASSERT_TRUE(out->initializers.contains(name)) << name;
    EXPECT_EQ(out->initializers.at(name)->AsFloats(), tensor->AsFloats()) << name;
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace weir
