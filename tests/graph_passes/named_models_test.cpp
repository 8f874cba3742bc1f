// Stored exports with a weights file: names, layouts and values.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "graph/error.h"
#include "graph/parameter.h"
#include "graph/text.h"
#include "graph_passes/pipeline.h"
#include "importer/importer.h"
#include "importer/safetensors.h"
#include "tests/graph_passes/reference_graph.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

const fs::path kModels = fs::path(WEIR_SOURCE_DIR) / "models";

std::unique_ptr<Graph> Canonical(const fs::path& file, const NamedTensors* names,
                                 const std::vector<std::string>& freeze = {}) {
  auto graph = ReadOnnx(file);
  PassManager passes;
  Canonicalize(*graph, {.names = names, .freeze = freeze}, passes);
  return graph;
}

bool Mentions(const Graph& graph, const std::string& text) {
  return std::any_of(graph.notices.begin(), graph.notices.end(), [&](const std::string& notice) {
    return notice.find(text) != std::string::npos;
  });
}

class NamedModels : public testing::TestWithParam<const char*> {};

TEST_P(NamedModels, EveryVariantPrintsTheSameTextUnderFrameworkNames) {
  const fs::path folder = kModels / GetParam();
  const Safetensors names = ReadSafetensors(folder / "weights.safetensors");
  std::string text;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".onnx") continue;
    SCOPED_TRACE(entry.path().string());
    const auto graph = Canonical(entry.path(), &names.tensors);
    if (text.empty()) text = CanonicalText(*graph);
    EXPECT_EQ(CanonicalText(*graph), text);
    EXPECT_FALSE(Mentions(*graph, "match no parameter"));
    // Independent of how they were found: the originals give the values back, and every tensor is
    // used.
    size_t used = 0;
    for (const Value* parameter : graph->ValuesWithRole(Role::kParameter)) {
      EXPECT_TRUE(names.tensors.contains(parameter->name)) << parameter->name;
      const ParameterInfo& info = *parameter->parameter;
      ASSERT_EQ(info.originals.size(), 1u) << parameter->name;
      const auto tensor = names.tensors.at(info.originals[0].tensor);
      EXPECT_EQ(ExtractPiece(info.originals[0], ToDims(parameter->shape),
                             LoadParameter(*graph, *parameter)),
                tensor->AsFloats());
      EXPECT_EQ(info.original_rank, static_cast<int>(tensor->dims().size()));
      ++used;
    }
    const size_t frozen =
        std::string(GetParam()) == "deepseek_v3" ? 1 : 0;  // e_score_correction_bias
    EXPECT_EQ(used + frozen, names.tensors.size());
  }
  EXPECT_FALSE(text.empty());
}

INSTANTIATE_TEST_SUITE_P(Families, NamedModels,
                         testing::Values("mixtral", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v3"),
                         [](const auto& info) { return std::string(info.param); });

// Gemma's norms multiply by 1 + weight, which torch's optimizer adds up: the file has the weights, the graph the sums.
TEST(NamedModels, SumsThatTheExporterHasFoldedAreToldWithTheCause) {
  NamedTensors names = ReadSafetensors(kModels / "olmoe/weights.safetensors").tensors;
  std::vector<float> norm = names.at("model.norm.weight")->AsFloats();
  for (float& value : norm) {
    ASSERT_TRUE(value >= 0.5f && value <= 2) << "so that 1 less is exact";
    value -= 1;
  }
  names["model.norm.weight"] = TensorData::FromFloats(names.at("model.norm.weight")->dims(), norm);
  const auto graph = Canonical(kModels / "olmoe/dynamo18_batched_mm_sdpa.onnx", &names);
  EXPECT_TRUE(Mentions(*graph, "1 parameters are tensors of the weights file to which the exporter has added 1"));
  EXPECT_TRUE(Mentions(*graph, "optimize=False of torch.onnx, as models/export_model.py does: model.norm.weight = 1 + model.norm.weight"));
}

// Distance from PyTorch's float64 logits, relative to their root mean square.
struct Distance {
  double worst, mean_square;
};
Distance LogitsError(const Graph& graph, const char* suffix) {
  const fs::path folder = kModels / "gpt_oss";
  const auto ids = ReadSafetensors(folder / "reference.safetensors")
                       .tensors.at(std::string("input_ids") + suffix);
  const auto truth = ReadSafetensors(folder / "float64.safetensors")
                         .tensors.at(std::string("logits") + suffix)
                         ->AsDoubles();
  Values<double> values;
  values[graph.inputs[0]] = Array<double>::Ints(ids->dims());
  values[graph.inputs[0]].i = ids->AsInts();
  for (const Value* parameter : graph.ValuesWithRole(Role::kParameter)) {
    auto array = Array<double>::Floats(ToDims(parameter->shape));
    const auto loaded = LoadParameter(graph, *parameter);
    std::copy(loaded.begin(), loaded.end(), array.f.begin());
    values[parameter] = std::move(array);
  }
  EvaluateForward(graph, values);
  const auto& logits = values.at(graph.outputs[0]).f;
  double worst = 0, error = 0, square = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    worst = std::max(worst, std::abs(logits.at(i) - truth[i]));
    error += (logits[i] - truth[i]) * (logits[i] - truth[i]);
    square += truth[i] * truth[i];
  }
  return {worst / std::sqrt(square / static_cast<double>(truth.size())), std::sqrt(error / square)};
}

TEST(GenaiModels, GptOssComputesPyTorchsLogits) {
  const auto full = Canonical(kModels / "genai/gpt_oss_fp32_cpu/model.onnx", nullptr);
  EXPECT_LT(LogitsError(*full, "").worst, 1e-6);
  EXPECT_LT(LogitsError(*full, "_2").worst, 1e-6);
  // Weights and rotary tables of 8 bits: 2^-9 for each of the dozen roundings between ids and
  // logits.
  const auto half = Canonical(kModels / "genai/gpt_oss_bf16_cuda/model.onnx", nullptr);
  EXPECT_LT(LogitsError(*half, "").mean_square, 12.0 / 512);
}

TEST(GenaiModels, PackedProjectionIsNamedAfterItsThreeParts) {
  const Safetensors names =
      ReadSafetensors(kModels / "genai/gpt_oss_fp32_cpu/hf_weights.safetensors");
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

// bfloat16 weights are found in the float32 file they were rounded from.
TEST(GenaiModels, RoundedWeightsKeepTheirNames) {
  const Safetensors names =
      ReadSafetensors(kModels / "genai/gpt_oss_bf16_cuda/hf_weights.safetensors");
  const auto graph = Canonical(kModels / "genai/gpt_oss_bf16_cuda/model.onnx", &names.tensors);
  EXPECT_FALSE(Mentions(*graph, "keep their ONNX names"));
  EXPECT_FALSE(Mentions(*graph, "match no parameter"));
}

// Blocks of 32 four-bit values: each is off by at most one step of its block.
TEST(GenaiModels, Int4WeightsAreNearTheFloatsTheyWereMadeFrom) {
  const fs::path folder = kModels / "genai/gpt_oss_int4_cpu_i32";
  const Safetensors floats = ReadSafetensors(folder / "hf_weights.safetensors");
  const auto graph = Canonical(folder / "model.onnx", nullptr);
  for (const auto& [dequantized, original] :
       {std::pair{"lm_head.MatMul.weight_Q4.dequantized", "lm_head.weight"},
        {"model.layers.1.attn.o_proj.MatMul.weight_Q4.dequantized",
         "model.layers.1.self_attn.o_proj.weight"}}) {
    const auto got = graph->initializers.at(dequantized)->AsFloats();
    const auto want = floats.tensors.at(original)->AsFloats();
    ASSERT_EQ(got.size(), want.size());
    for (size_t first = 0; first < got.size(); first += 32) {
      float largest = 0;
      for (size_t i = first; i < first + 32; ++i) largest = std::max(largest, std::abs(want[i]));
      for (size_t i = first; i < first + 32; ++i)
        ASSERT_LE(std::abs(got[i] - want[i]), largest / 7 + 1e-6f) << i;
    }
  }
  // Experts: canonical [E,2I,H] of the file's interleaved rows against the framework's [E,H,2I].
  const Value* gate_up =
      graph->FindValue("model.layers.0.moe.experts.gate_up_proj.qweight.dequantized.experts");
  ASSERT_NE(gate_up, nullptr);
  const auto got = LoadParameter(*graph, *gate_up);
  const auto want = floats.tensors.at("model.layers.0.mlp.experts.gate_up_proj")->AsFloats();
  const int64_t experts = 6, rows = 64, hidden = 64;
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t column = r < rows / 2 ? 2 * r : 2 * (r - rows / 2) + 1;
      const auto original = [&](int64_t h) {
        return want[static_cast<size_t>((e * hidden + h) * rows + column)];
      };
      for (int64_t h = 0; h < hidden; ++h) {
        float largest = 0;
        for (int64_t i = h / 32 * 32; i < h / 32 * 32 + 32; ++i)
          largest = std::max(largest, std::abs(original(i)));
        ASSERT_NEAR(got[static_cast<size_t>((e * rows + r) * hidden + h)], original(h), largest / 7)
            << e << " " << r << " " << h;
      }
    }
  }
}

// Without its dispatch recognised a model would train everything but its experts.
TEST(LeftoverWeights, AreAnErrorNotSilence) {
  auto graph = ReadOnnx(kModels / "mixtral/hf18_batched_mm_sdpa.onnx");
  PassManager passes;
  passes.disabled.insert("fuse_experts");
  try {
    Canonicalize(*graph, {}, passes);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupportedOp);
    EXPECT_NE(error.message().find("[5,24,64] is used by GatherND"), std::string::npos)
        << error.message();
  }
}

TEST(Freeze, MakesMatchingParametersConstants) {
  const fs::path folder = kModels / "mixtral";
  const Safetensors names = ReadSafetensors(folder / "weights.safetensors");
  const auto graph =
      Canonical(folder / "hf18_batched_mm_sdpa.onnx", &names.tensors, {"*.mlp.gate.weight"});
  const Value* gate = graph->FindValue("model.layers.0.mlp.gate.weight");
  ASSERT_NE(gate, nullptr);
  EXPECT_EQ(gate->role, Role::kConstant);
  EXPECT_EQ(gate->data->AsFloats(), names.tensors.at("model.layers.0.mlp.gate.weight")->AsFloats());
  EXPECT_EQ(graph->FindValue("model.norm.weight")->role, Role::kParameter);
}

TEST(Freeze, APatternThatMatchesNothingIsAnErrorListingTheNames) {
  try {
    Canonical(kModels / "mixtral/hf18_batched_mm_sdpa.onnx", nullptr, {"*.router.*"});
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(error.message().find("model.norm.weight"), std::string::npos);
  }
}

}  // namespace
}  // namespace weir
