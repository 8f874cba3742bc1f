#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

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
  const bool fresh = GetParam().string().find("_fresh") != std::string::npos;
  EXPECT_EQ(graph->notices.size(), fresh ? 3u : 0u);  // gains, biases of two sizes
  EXPECT_EQ(graph->inputs.at(0)->name, "input_ids");
  EXPECT_EQ(ToString(graph->inputs.at(0)->shape), "[batch,sequence]");
  for (const auto& [name, data] : graph->initializers) EXPECT_NE(data, nullptr) << name;
  for (const auto& node : graph->nodes()) EXPECT_NE(node->source, "");
  InferGraph(*graph);
  EXPECT_TRUE(std::any_of(graph->outputs.begin(), graph->outputs.end(), [](const Value* output) {
    return output->name == "logits" && output->shape.size() == 3 && IsFloat(output->dtype);
  }));
}

INSTANTIATE_TEST_SUITE_P(Models, StoredModel, testing::ValuesIn(StoredModels()),
                         [](const auto& info) {
                           std::string name =
                               fs::relative(info.param, WEIR_SOURCE_DIR "/models").string();
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return !std::isalnum(c); },
                               '_');
                           return name;
                         });

// Exports of whole models whose weights file is left out.
TEST(FullSizeModels, AreReadWithoutTheirWeights) {
  TempFolder folder;
  const std::string archive = WEIR_SOURCE_DIR "/models/full_size.tar.gz";
  if (!fs::exists(archive)) GTEST_SKIP() << archive << " is not there";
  ASSERT_EQ(std::system(("tar xzf '" + archive + "' -C " + folder.path().string()).c_str()), 0);
  int models = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
    if (entry.path().extension() != ".onnx") continue;
    SCOPED_TRACE(entry.path());
    ++models;
    const auto graph = ReadOnnx(entry.path());
    VerifyGraph(*graph);
    ASSERT_EQ(graph->notices.size(), 1u);
    EXPECT_NE(graph->notices[0].find("'weights.bin' is not there"), std::string::npos);
    InferGraph(*graph);
    EXPECT_EQ(graph->outputs.at(0)->shape.size(), 3u);
  }
  EXPECT_EQ(models, 6);
}

}  // namespace
}  // namespace weir
