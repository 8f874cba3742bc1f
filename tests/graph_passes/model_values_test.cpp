// Stored exports against PyTorch: every variant of a family is one canonical graph, and it computes the
// logits that PyTorch stored, at two launch shapes.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "graph/text.h"
#include "graph_passes/pipeline.h"
#include "importer/importer.h"
#include "importer/safetensors.h"
#include "tests/graph_passes/interpreter.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

const fs::path kModels = fs::path(WEIR_SOURCE_DIR) / "models";

std::unique_ptr<Graph> Canonical(const fs::path& file, const NamedTensors* names) {
  auto graph = ReadOnnx(file);
  PassManager passes;
  Canonicalize(*graph, {.names = names, .freeze = {}}, passes);
  return graph;
}

// PyTorch's own float32 run is within 2e-6 of float64 on these models; ten times that for another order of sums.
void ExpectLogits(const Graph& graph, const Safetensors& reference, double tolerance) {
  for (const char* suffix : {"", "_2"}) {
    const auto ids = ToArray(*reference.tensors.at(std::string("input_ids") + suffix));
    const auto logits = ToArray(*reference.tensors.at(std::string("logits") + suffix));
    EXPECT_LT(RelativeError(Interpret(graph, {{"input_ids", ids}}), logits), tolerance) << "shape " << ToString(ids.dims);
  }
}

class ModelValues : public testing::TestWithParam<const char*> {};

TEST_P(ModelValues, EveryVariantIsOneGraphThatComputesPyTorchsLogits) {
  const fs::path folder = kModels / GetParam();
  const Safetensors names = ReadSafetensors(folder / "weights.safetensors");
  const Safetensors reference = ReadSafetensors(folder / "reference.safetensors");
  std::string text;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".onnx") continue;
    SCOPED_TRACE(entry.path().string());
    const auto graph = Canonical(entry.path(), &names.tensors);
    ExpectLogits(*graph, reference, 2e-5);
    if (text.empty()) text = CanonicalText(*graph);
    EXPECT_EQ(CanonicalText(*graph), text);
    for (const Value* parameter : graph->ValuesWithRole(Role::kParameter)) {
      EXPECT_TRUE(names.tensors.contains(parameter->name)) << parameter->name;
    }
  }
  EXPECT_FALSE(text.empty());
}

INSTANTIATE_TEST_SUITE_P(Families, ModelValues,
                         testing::Values("mixtral", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v3"));

TEST(ModelValues, GenaiGptOssComputesPyTorchsLogits) {
  const Safetensors reference = ReadSafetensors(kModels / "gpt_oss" / "reference.safetensors");
  ExpectLogits(*Canonical(kModels / "genai/gpt_oss_fp32_cpu/model.onnx", nullptr), reference, 2e-5);
  // Weights and tables of 8 bits: two layers of roundings of 2^-9 each.
  ExpectLogits(*Canonical(kModels / "genai/gpt_oss_bf16_cuda/model.onnx", nullptr), reference, 5e-2);
}

TEST(ModelValues, GenaiPackedProjectionIsNamedAfterItsThreeParts) {
  const Safetensors names = ReadSafetensors(kModels / "genai/gpt_oss_fp32_cpu/hf_weights.safetensors");
  const auto graph = Canonical(kModels / "genai/gpt_oss_fp32_cpu/model.onnx", &names.tensors);
  const Value* packed = graph->FindValue("model.layers.0.self_attn.q_proj.weight");
  ASSERT_NE(packed, nullptr);
  const auto& pieces = packed->parameter->originals;
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(pieces[1].tensor, "model.layers.0.self_attn.k_proj.weight");
  EXPECT_EQ(pieces[1].offset, (Dims{64, 0}));
  EXPECT_EQ(pieces[2].tensor, "model.layers.0.self_attn.v_proj.weight");
  EXPECT_EQ(pieces[2].offset, (Dims{96, 0}));
}

// Blocks of 32 four-bit values: each is off by at most one step of its block.
TEST(ModelValues, Int4WeightsAreNearTheFloatsTheyWereMadeFrom) {
  const fs::path folder = kModels / "genai/gpt_oss_int4_cpu_i32";
  const Safetensors floats = ReadSafetensors(folder / "hf_weights.safetensors");
  const auto graph = Canonical(folder / "model.onnx", nullptr);
  const Value* head = graph->FindValue("lm_head.MatMul.weight_Q4.dequantized");
  ASSERT_NE(head, nullptr);
  const auto got = graph->initializers.at(head->name)->AsFloats();
  const auto want = floats.tensors.at("lm_head.weight")->AsFloats();
  ASSERT_EQ(got.size(), want.size());
  for (size_t first = 0; first < got.size(); first += 32) {
    float largest = 0;
    for (size_t i = first; i < first + 32; ++i) largest = std::max(largest, std::abs(want[i]));
    for (size_t i = first; i < first + 32; ++i) ASSERT_LE(std::abs(got[i] - want[i]), largest / 7 + 1e-6f) << i;
  }
}

}  // namespace
}  // namespace weir
