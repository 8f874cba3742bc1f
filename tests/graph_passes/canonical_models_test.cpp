// Every stored export of a family becomes one and the same graph, whatever exporter, opset,
// attention and expert implementation made it, and that graph computes PyTorch's logits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "graph/parameter.h"
#include "graph/text.h"
#include "graph_passes/pipeline.h"
#include "importer/importer.h"
#include "importer/safetensors.h"
#include "tests/graph_passes/reference_graph.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

fs::path Folder(const std::string& family) { return fs::path(WEIR_SOURCE_DIR) / "models" / family; }

std::vector<fs::path> Exports(const std::string& family) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(Folder(family))) {
    if (entry.path().extension() == ".onnx") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::unique_ptr<Graph> Canonical(const fs::path& file) {
  auto graph = ReadOnnx(file);
  PassManager passes;
  Canonicalize(*graph, {}, passes);
  for (const PassRecord& record : passes.records()) {
    EXPECT_TRUE(record.misses.empty()) << record.name << ": " << record.misses[0];
  }
  return graph;
}

// The body of the text with parameters numbered in order of use: exporters name transposed weights
// freely.
std::string Body(const Graph& graph) {
  const std::string text = CanonicalText(graph);
  std::map<std::string, std::string> numbers;
  std::string body, word;
  for (const char c : text.substr(text.find("\n{"))) {
    if (c != ' ' && c != ',' && c != '(' && c != ')' && c != '\n') {
      word += c;
      continue;
    }
    const Value* value = graph.FindValue(word);
    if (value != nullptr && value->role == Role::kParameter) {
      word =
          numbers.try_emplace(word, "p" + std::to_string(numbers.size()) + ToString(value->shape))
              .first->second;
    }
    body += word + c;
    word.clear();
  }
  return body;
}

// Largest distance from the float64 logits, relative to their root mean square.
double LogitsError(Graph& graph, const TensorDataPtr& ids, const TensorDataPtr& logits) {
  Values<double> values;
  Array<double> tokens = Array<double>::Ints(ids->dims());
  tokens.i = ids->AsInts();
  values[graph.inputs[0]] = tokens;
  for (const Value* parameter : graph.ValuesWithRole(Role::kParameter)) {
    auto array = Array<double>::Floats(ToDims(parameter->shape));
    const auto loaded = LoadParameter(graph, *parameter);
    std::copy(loaded.begin(), loaded.end(), array.f.begin());
    values[parameter] = std::move(array);
  }
  EvaluateForward(graph, values);
  const auto truth = logits->AsDoubles();
  const auto& computed = values.at(graph.outputs[0]).f;
  EXPECT_EQ(computed.size(), truth.size());
  double worst = 0, square = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    worst = std::max(worst, std::abs(computed[i] - truth[i]));
    square += truth[i] * truth[i];
  }
  return worst / std::sqrt(square / static_cast<double>(truth.size()));
}

class CanonicalModels : public testing::TestWithParam<const char*> {};

TEST_P(CanonicalModels, AreOneGraphPerFamily) {
  const auto files = Exports(GetParam());
  ASSERT_GT(files.size(), 1u);
  const std::string first = Body(*Canonical(files[0]));
  for (const char* left_over :
       {"MatMul", "Transpose", "RMSNormalization", "Gather(", "Range", "Pow", "Cos"}) {
    EXPECT_EQ(first.find(left_over), first.npos) << left_over << " in\n" << first;
  }
  for (const fs::path& file : files)
    EXPECT_EQ(Body(*Canonical(file)), first) << file << " against " << files[0];
}

// The graph in double against PyTorch in float64. What float32 leaves is in both: the rotary
// angles. The graph's own constants (epsilon, attention scale) are float32, hence 1e-6.
TEST_P(CanonicalModels, ComputePyTorchsLogits) {
  const auto truth = ReadSafetensors(Folder(GetParam()) / "float64.safetensors");
  const auto inputs = ReadSafetensors(Folder(GetParam()) / "reference.safetensors");
  for (const fs::path& file : Exports(GetParam())) {
    SCOPED_TRACE(file.string());
    auto graph = Canonical(file);
    EXPECT_EQ(graph->outputs[0]->name, "logits");
    EXPECT_LT(LogitsError(*graph, inputs.tensors.at("input_ids"), truth.tensors.at("logits")),
              1e-6);
    EXPECT_LT(LogitsError(*graph, inputs.tensors.at("input_ids_2"), truth.tensors.at("logits_2")),
              1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, CanonicalModels,
                         testing::Values("mixtral", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace weir
