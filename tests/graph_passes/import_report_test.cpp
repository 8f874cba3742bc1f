#include "graph_passes/import_report.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "graph/text.h"
#include "graph_passes/pipeline.h"
#include "importer/importer.h"

namespace weir {
namespace {

ImportReport Describe(const std::string& model) {
  auto graph = ReadOnnx(std::filesystem::path(WEIR_SOURCE_DIR) / "models" / model);
  PassManager passes;
  Canonicalize(*graph, {}, passes);
  return DescribeModel(*graph);
}

std::string Only(const ImportReport::PerLayer& entries, int64_t layers) {
  if (entries.size() != 1 || entries.begin()->second != layers) return "not one description";
  return entries.begin()->first;
}

// The figures are those of models/*/config.json.
TEST(ImportReport, Mixtral) {
  const ImportReport r = Describe("mixtral/hf18_grouped_mm_sdpa.onnx");
  EXPECT_EQ(r.layers, 2);
  EXPECT_EQ(r.moe_layers, 2);
  EXPECT_EQ(r.dense_layers, 0);
  EXPECT_EQ(r.hidden, 64);
  EXPECT_EQ(r.vocabulary, 307);
  EXPECT_EQ(r.expert_count, 5);
  EXPECT_EQ(r.top_k, 2);
  EXPECT_EQ(Only(r.attention, 2),
            "GQA: 4 query heads over 2 key-value heads of 16; rotary, base 10000");
  EXPECT_EQ(Only(r.routers, 2), "Linear -> Softmax -> TopK(2) -> normalise");
  EXPECT_EQ(Only(r.experts, 2), "5 of width 12, top-2, swiglu");
  EXPECT_TRUE(r.shared.empty());
  EXPECT_FALSE(r.tied);
  EXPECT_TRUE(r.shared_parameters.empty());
  // Embedding and head 2*307*64; per layer q,o 2*64*64, k,v 2*32*64, gate 5*64, experts 5*3*12*64,
  // norms 2*64; norm 64.
  EXPECT_EQ(
      r.parameters,
      2 * 307 * 64 + 2 * (2 * 64 * 64 + 2 * 32 * 64 + 5 * 64 + 5 * 3 * 12 * 64 + 2 * 64) + 64);
  EXPECT_EQ(r.parameters - r.active_parameters,
            2 * 3 * (3 * 12 * 64));  // three of five experts idle, twice
}

TEST(ImportReport, GptOssLayersDiffer) {
  const ImportReport r = Describe("gpt_oss/hf18_batched_mm_eager.onnx");
  ASSERT_EQ(r.attention.size(), 2u);  // with and without the window
  for (const auto& [words, layers] : r.attention) {
    EXPECT_EQ(layers, 1);
    EXPECT_NE(words.find("sinks"), std::string::npos);
    EXPECT_NE(words.find("YaRN"), std::string::npos);
  }
  EXPECT_EQ(Only(r.routers, 2), "Linear with bias -> TopK(2) -> Softmax");
  EXPECT_EQ(Only(r.experts, 2), "6 of width 12, top-2, swiglu alpha 1.702 beta 1 limit 7, biases");
}

TEST(ImportReport, DeepseekSharesDenseLatentAndFrozenBias) {
  const ImportReport r = Describe("deepseek_v3/hf18_batched_mm_eager.onnx");
  EXPECT_EQ(r.moe_layers, 1);
  EXPECT_EQ(r.dense_layers, 1);
  EXPECT_EQ(Only(r.attention, 2),
            "MLA: 4 heads of 16, values of 12, latent rank 16; interleaved rotary of 8 channels, "
            "base 10000");
  EXPECT_EQ(Only(r.routers, 1),
            "Linear -> Sigmoid -> + frozen bias -> 2 groups -> TopK(2 per group) -> sum -> TopK(1) "
            "-> mask -> TopK(2) -> "
            "scores of the chosen -> normalise -> * 2.5");
  EXPECT_EQ(Only(r.shared, 1), "width 12");
  EXPECT_EQ(Only(r.dense, 1), "width 40");
  ASSERT_EQ(r.frozen.size(), 1u);
  EXPECT_EQ(r.frozen[0].dims, (Dims{8}));
  EXPECT_EQ(r.frozen[0].reason, "no gradient reaches it");
}

TEST(ImportReport, NormsOfQueriesAreSaid) {
  EXPECT_NE(
      Only(Describe("qwen3_moe/hf18_batched_mm_eager.onnx").attention, 2).find("norm per head"),
      std::string::npos);
  const ImportReport olmoe = Describe("olmoe/hf18_batched_mm_eager.onnx");
  EXPECT_NE(Only(olmoe.attention, 2).find("MHA"), std::string::npos);
  EXPECT_NE(Only(olmoe.attention, 2).find("norm over all heads"), std::string::npos);
  EXPECT_EQ(Only(olmoe.routers, 2), "Linear -> Softmax -> TopK(2)");
}

TEST(ImportReport, JsonHoldsTheSameFigures) {
  const ImportReport r = Describe("genai/gpt_oss_fp32_cpu/model.onnx");
  const auto json = nlohmann::json::parse(ToJson(r));
  EXPECT_EQ(json["experts"], 6);
  EXPECT_EQ(json["parameters"], r.parameters);
  EXPECT_EQ(json["trained"].size(), r.trained.size());
  EXPECT_EQ(json["stripped"].size(), 9u);  // four caches in, four out, the mask
  EXPECT_NE(ToText(r).find("TopK(2) -> Softmax"), std::string::npos);
}

// Text of a graph by hand: one key-value head, a head tied to the embedding, a gated shared expert.
TEST(ImportReport, TiedHeadAndGatedSharedExpert) {
  const auto graph = ParseText(
      "graph g (int64[batch,sequence] input_ids) => (float[batch,sequence,10] logits)\n"
      "parameter float[10,4] table\nparameter float[4] n\nparameter float[8,4] q\nparameter "
      "float[4,4] k\nparameter float[4,8] o\n"
      "parameter float[3,4] gate\nparameter float[3,4,4] gu\nparameter float[3,4,2] down\n"
      "parameter float[6,4] sg\nparameter float[6,4] su\nparameter float[4,6] sd\nparameter "
      "float[1,4] s\n"
      "constant int64[4] heads = {0, 0, 2, 4}\nconstant int64[4] one = {0, 0, 1, 4}\nconstant "
      "int64[3] flat = {0, 0, 8}\n"
      "constant int64[2] rows = {-1, 4}\nconstant int64[1] two = {2}\nconstant int64[1] four = "
      "{4}\n"
      "{\n"
      "  h = Embedding(input_ids, table)\n  a = RmsNorm(h, n)\n"
      "  ql = Linear(a, q)\n  kl = Linear(a, k)\n  qh = Reshape(ql, heads)\n  kh = Reshape(kl, "
      "one)\n"
      "  y = ai.weir::Attention<scale = 0.5>(qh, kh, kh)\n  yf = Reshape(y, flat)\n  ol = "
      "Linear(yf, o)\n  h2 = Add(h, ol)\n"
      "  x3 = RmsNorm(h2, n)\n  x = Reshape(x3, rows)\n  l = Linear(x, gate)\n  p = Sigmoid(l)\n  "
      "w, ids = TopK<axis = 1>(p, two)\n"
      "  e = Experts(x, ids, w, gu, down)\n"
      "  g1 = Linear(x, sg)\n  g2 = Sigmoid(g1)\n  g3 = Mul(g1, g2)\n  u = Linear(x, su)\n  m = "
      "Mul(g3, u)\n  d = Linear(m, sd)\n"
      "  c1 = Linear(x, s)\n  c2 = Sigmoid(c1)\n  c = Mul(c2, d)\n  r = Add(e, c)\n"
      "  sh = Shape(input_ids)\n  to = Concat<axis = 0>(sh, four)\n  r3 = Reshape(r, to)\n  h3 = "
      "Add(h2, r3)\n"
      "  f = RmsNorm(h3, n)\n  logits = Linear(f, table)\n}\n");
  const ImportReport r = DescribeModel(*graph);
  EXPECT_TRUE(r.tied);
  ASSERT_EQ(r.shared_parameters.size(), 1u);  // n, of three norms; not the tied table
  EXPECT_EQ(r.shared_parameters[0].name, "n");
  EXPECT_EQ(r.shared_parameters[0].readers, (std::vector<std::string>{"RmsNorm 'a'", "RmsNorm 'x3'", "RmsNorm 'f'"}));
  EXPECT_NE(ToText(r).find("shared        'n' is read by 3 nodes: RmsNorm 'a', RmsNorm 'x3', RmsNorm 'f'\n"), std::string::npos);
  EXPECT_EQ(Only(r.attention, 1), "MQA: 2 query heads over 1 key-value head of 4; no rotary");
  EXPECT_EQ(Only(r.routers, 1), "Linear -> Sigmoid -> TopK(2)");
  EXPECT_EQ(Only(r.shared, 1), "width 6, gated by Sigmoid");
  EXPECT_EQ(r.dense_layers, 0);
}

}  // namespace
}  // namespace weir
