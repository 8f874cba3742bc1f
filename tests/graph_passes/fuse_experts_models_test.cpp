// Every stored export must come out with one Experts node per MoE layer and nothing left of the
// dispatch.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "graph_passes/pipeline.h"
#include "importer/importer.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> Exports(const std::string& family) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(fs::path(WEIR_SOURCE_DIR) / "models" / family)) {
    if (entry.path().extension() == ".onnx") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

struct Layers {
  const char* family;
  int64_t moe_layers, experts, width;  // width: I
};
void PrintTo(const Layers& layers, std::ostream* out) { *out << layers.family; }

class FuseExpertsModels : public testing::TestWithParam<Layers> {};

TEST_P(FuseExpertsModels, LeavesOneExpertsNodePerLayer) {
  const auto& [family, moe_layers, experts, width] = GetParam();
  const auto files = Exports(family);
  ASSERT_FALSE(files.empty());
  for (const fs::path& file : files) {
    SCOPED_TRACE(file.string());
    auto graph = ReadOnnx(file);
    PassManager passes;
    Canonicalize(*graph, {}, passes);
    int64_t found = 0;
    for (const auto& node : graph->nodes()) {
      for (const char* dispatch : {"NonZero", "OneHot", "ScatterElements", "MoE", "QMoE"}) {
        const bool group_mask =
            family == std::string("deepseek_v3") && dispatch == std::string("ScatterElements");
        EXPECT_TRUE(group_mask || node->op() != dispatch) << node->source;
      }
      if (node->op() != "Experts") continue;
      ++found;
      EXPECT_EQ(ToString(node->in(3)->shape), ToString(Shape{experts, 2 * width, 64}));
      EXPECT_EQ(ToString(node->in(4)->shape), ToString(Shape{experts, 64, width}));
      EXPECT_EQ(node->in(1)->producer->op(), "TopK");
      const bool gpt_oss = std::string(family).find("gpt_oss") != std::string::npos;
      EXPECT_EQ(node->in(5) != nullptr, gpt_oss);
      EXPECT_FLOAT_EQ(node->attributes.Float("alpha", 1), gpt_oss ? 1.702f : 1.0f);
      EXPECT_EQ(node->attributes.Float("beta", 0), gpt_oss ? 1 : 0);
      EXPECT_EQ(node->attributes.Float("limit", 0), gpt_oss ? 7 : 0);
    }
    EXPECT_EQ(found, moe_layers);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, FuseExpertsModels,
                         testing::Values(Layers{"mixtral", 2, 5, 12}, Layers{"qwen3_moe", 2, 7, 12},
                                         Layers{"olmoe", 2, 8, 12}, Layers{"gpt_oss", 2, 6, 12},
                                         Layers{"deepseek_v3", 1, 8, 12},
                                         Layers{"genai/gpt_oss_fp32_cpu", 2, 6, 12},
                                         Layers{"genai/gpt_oss_bf16_cuda", 2, 6, 12},
                                         Layers{"genai/gpt_oss_int4_cpu_i32", 2, 6, 32}),
                         [](const auto& info) {
                           std::string name = info.param.family;
                           std::replace(name.begin(), name.end(), '/', '_');
                           return name;
                         });

}  // namespace
}  // namespace weir
