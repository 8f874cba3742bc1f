#include <gtest/gtest.h>

#include <algorithm>

#include "graph/op_schema.h"
#include "importer/importer.h"
#include "tests/importer/model_builder.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> StoredModels() {
  std::vector<fs::path> models;
  for (const auto& entry : fs::recursive_directory_iterator(WEIR_SOURCE_DIR "/models")) {
    if (entry.path().extension() == ".onnx") models.push_back(entry.path());
  }
  std::sort(models.begin(), models.end());
  return models;
}

class StoredModel : public testing::TestWithParam<fs::path> {};

TEST_P(StoredModel, IsRead) {
  const auto graph = ReadOnnx(GetParam());
  VerifyGraph(*graph);
  EXPECT_TRUE(graph->notices.empty()) << graph->notices[0];
  EXPECT_EQ(graph->inputs.at(0)->name, "input_ids");
  EXPECT_EQ(ToString(graph->inputs.at(0)->shape), "[batch,sequence]");
  for (const auto& [name, data] : graph->initializers) EXPECT_NE(data, nullptr) << name;
  for (const auto& node : graph->nodes()) EXPECT_NE(node->source, "");
  InferGraph(*graph);
  EXPECT_TRUE(std::any_of(graph->outputs.begin(), graph->outputs.end(), [](const Value* output) {
    return output->name == "logits" && output->shape.size() == 3 && IsFloat(output->dtype);
  }));
}

INSTANTIATE_TEST_SUITE_P(Models, StoredModel, testing::ValuesIn(StoredModels()), [](const auto& info) {
  std::string name = fs::relative(info.param, WEIR_SOURCE_DIR "/models").string();
  std::replace_if(name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
  return name;
});

}  // namespace
}  // namespace weir
