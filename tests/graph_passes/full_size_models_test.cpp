// Real exports of full-size models, unoptimised and without their weights, reach the canonical
// form.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "graph_passes/pipeline.h"
#include "importer/importer.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

struct Model {
  const char* file;
  int64_t layers, kv_heads, window_layers;
};

class FullSizeModels : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = fs::temp_directory_path() / ("weir_full_size_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    const fs::path archive = fs::path(WEIR_SOURCE_DIR) / "models" / "full_size.tar.gz";
    const std::string command = "tar -xzf '" + archive.string() + "' -C '" + folder_.string() + "'";
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  }
  static void TearDownTestSuite() { fs::remove_all(folder_); }
  static fs::path Find(const std::string& name) {
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      if (entry.path().filename() == name) return entry.path();
    }
    return {};
  }
  static fs::path folder_;
};
fs::path FullSizeModels::folder_;

TEST_F(FullSizeModels, AreCanonicalWithoutTheirWeights) {
  const Model models[] = {{"moe-1b_opset18_batched_mm.onnx", 12, 4, 0},
                          {"olmoe-1b-7b_opset18_batched_mm.onnx", 16, 16, 0},
                          {"olmoe-1b-7b_opset23_batched_mm.onnx", 16, 16, 0},
                          {"gpt-oss-20b_opset18_batched_mm.onnx", 24, 8, 12},
                          {"qwen3-30b-a3b_opset18_batched_mm.onnx", 48, 4, 0},
                          {"paper-120b_opset18_batched_mm.onnx", 7, 0, 0}};
  for (const Model& model : models) {
    SCOPED_TRACE(model.file);
    const fs::path file = Find(model.file);
    ASSERT_FALSE(file.empty());
    auto graph = ReadOnnx(file);
    PassManager passes;
    Canonicalize(*graph, {}, passes);
    int64_t attention = 0, experts = 0, windows = 0, left_over = 0;
    for (const auto& node : graph->nodes()) {
      if (node->op() == "Attention") {
        ++attention;
        windows += node->attributes.Int("window", 0) == 128;
        if (model.kv_heads > 0) {
          EXPECT_EQ(node->in(1)->shape[2], Dim(model.kv_heads));
        }
      }
      experts += node->op() == "Experts";
      for (const char* op : {"MatMul", "Transpose", "Pow", "Range", "Cos", "Where"}) {
        left_over += node->op() == op;
      }
    }
    EXPECT_EQ(attention, model.layers);
    EXPECT_EQ(experts, model.layers);
    EXPECT_EQ(windows, model.window_layers);
    EXPECT_EQ(left_over, 0);
    EXPECT_LT(graph->nodes().size(), 40u * static_cast<size_t>(model.layers) + 40);
  }
}

}  // namespace
}  // namespace weir
