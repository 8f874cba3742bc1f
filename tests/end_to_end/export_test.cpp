// The trained, exported model is the user's own graph: ONNX Runtime runs it and gives our logits.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "importer/importer.h"
#include "importer/safetensors.h"
#include "optim/export.h"
#include "optim/verify.h"

namespace weir {
namespace {

namespace fs = std::filesystem;
const fs::path kRoot = WEIR_SOURCE_DIR, kModels = kRoot / "models";

std::unique_ptr<Graph> Load(const fs::path& model, const fs::path& weights) {
  CanonicalizeOptions options;
  Safetensors names;
  if (!weights.empty()) {
    names = ReadSafetensors(weights);
    options.names = &names.tensors;
  }
  PassManager passes;
  auto graph = ReadOnnx(model);
  Canonicalize(*graph, options, passes);
  return graph;
}

// Three steps on the reference batch move every parameter well beyond the comparison's tolerance.
void TrainAndExport(const fs::path& model, const fs::path& names, const fs::path& target, const char* ids_of = "mixtral") {
  const Safetensors reference = ReadSafetensors(kModels / ids_of / "reference.safetensors");
  const auto& ids = *reference.tensors.at("input_ids");
  PassManager passes;
  const auto graph = Load(model, names);
  TrainingSession session(*graph, {}, ids.dims()[0], ids.dims()[1], {}, passes);
  const TrainingSession::MicroBatch batch{ids.AsInts(), reference.tensors.at("labels")->AsInts()};
  for (int64_t step = 1; step <= 3; ++step) {
    ASSERT_TRUE(session.ComputeGradients({&batch, 1}).finite);
    session.Update(1e-2, step);
  }
  fs::path weights = target;
  weights.replace_extension(".weights");
  SaveWeights(session, weights, 3);
  ExportModel(*graph, model, ReadSafetensors(weights).tensors, target);

  const auto trained = Load(target, {});
  InferenceSession inference(*trained, ids.dims()[0], ids.dims()[1]);
  inference.Run(ids.AsInts());
  const Tensor logits = inference.Output("logits");
  const std::vector<float> values(logits.data<float>(), logits.data<float>() + logits.elements());
  InferenceSession before(*graph, ids.dims()[0], ids.dims()[1]);
  before.Run(ids.AsInts());
  double moved = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    moved = std::max(moved, std::abs(static_cast<double>(values[i]) - before.Output("logits").data<float>()[i]));
  }
  EXPECT_GT(moved, 1e-2) << "training changed nothing, so the comparison would prove nothing";
  fs::path expected = target;
  expected.replace_extension(".safetensors");
  WriteSafetensors(expected, {{"input_ids", TensorData::FromInts(ids.dims(), ids.AsInts())},
                              {"logits", TensorData::FromFloats(logits.dims, values)}});
}

TEST(Export, OnnxRuntimeRunsEveryTrainedModelWithOurLogits) {
  const fs::path python = kRoot / ".venv/bin/python";
  const std::string probe = python.string() + " -c 'import onnxruntime, safetensors' 2>/dev/null";
  if (std::system(probe.c_str()) != 0) GTEST_SKIP() << "onnxruntime is not installed in .venv (make setup installs it)";
  const fs::path folder = fs::temp_directory_path() / ("weir_export_" + std::to_string(getpid()));
  fs::create_directories(folder);
  int cases = 0;
  for (const char* family : {"mixtral", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v3"}) {
    for (const auto& entry : fs::directory_iterator(kModels / family)) {
      const std::string name = entry.path().filename().string();
      // ONNX Runtime refuses opset 23's RotaryEmbedding as torch writes it; the rest it runs.
      if (entry.path().extension() != ".onnx" || name.starts_with("dynamo23")) continue;
      SCOPED_TRACE(family + ("/" + name));
      TrainAndExport(entry.path(), kModels / family / "weights.safetensors", folder / (family + ("_" + name)));
      ++cases;
    }
  }
  TrainAndExport(kModels / "genai/gpt_oss_fp32_cpu/model.onnx", {}, folder / "genai_gpt_oss.onnx");
  TrainAndExport(kModels / "qwen2_moe_fresh/dynamo18_batched_mm_sdpa.onnx", {}, folder / "fresh.onnx", "qwen2_moe_fresh");
  EXPECT_GE(cases, 20);
  const std::string command = python.string() + " " + (kRoot / "tests/end_to_end/run_onnxruntime.py").string() + " " + folder.string();
  EXPECT_EQ(std::system(command.c_str()), 0) << "a trained model differs in ONNX Runtime; see the lines above";
  fs::remove_all(folder);
}

}  // namespace
}  // namespace weir
