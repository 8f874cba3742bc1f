#include "graph_passes/lower_contrib.h"

#include <gtest/gtest.h>

#include <cmath>

#include "graph/op_schema.h"
#include "graph/parameter.h"
#include "graph_passes/rotary_cache.h"
#include "tests/graph_passes/lowered.h"

namespace weir {
namespace {

TEST(LowerContrib, SkipNormBecomesAddAndRmsNorm) {
  const auto graph = Lower(
      "graph g (float[batch,sequence,4] x, float[batch,sequence,4] skip) => "
      "(float[batch,sequence,4] y, "
      "float[batch,sequence,4] s)\n"
      "parameter float[4] gamma\n"
      "{\n  y, \"\", \"\", s = com.microsoft::SkipSimplifiedLayerNormalization<epsilon = 1e-06>(x, "
      "skip, gamma)\n}\n");
  EXPECT_EQ(CanonicalText(*graph),
            "graph (float[batch,sequence,4] x, float[batch,sequence,4] skip) => "
            "(float[batch,sequence,4] y, "
            "float[batch,sequence,4] s)\n"
            "parameter float[4] gamma\n"
            "{\n  s = Add(x, skip)\n  y = RmsNorm<epsilon = 1e-06>(s, gamma)\n}\n");
}

TEST(LowerContrib, GatedAddAndQuickGelu) {
  const auto graph = Lower(
      "graph g (float[batch,4] r, float[batch,4] s, float[batch,1] g) => (float[batch,4] y)\n"
      "{\n  a = com.microsoft::GatedAdd(r, s, g)\n  y = com.microsoft::QuickGelu<alpha = "
      "2.0>(a)\n}\n");
  EXPECT_EQ(
      CanonicalText(*graph),
      "graph (float[batch,4] r, float[batch,4] s, float[batch,1] g) => (float[batch,4] y)\n"
      "{\n  %0 = Mul(s, g)\n  %1 = Add(r, %0)\n  %2 = Mul(%1, float[]{2})\n  %3 = Sigmoid(%2)\n"
      "  y = Mul(%1, %3)\n}\n");
}

// What ONNX Runtime's schemas say where a node says nothing.
TEST(LowerContrib, AbsentAttributesHaveTheSchemasDefaults) {
  const auto epsilon = [](const std::string& node, const char* op) {
    const auto graph = Lower(
        "graph g (float[batch,sequence,4] x, float[batch,sequence,4] skip) => (float[batch,sequence,4] y)\n"
        "parameter float[4] gamma\nparameter float[4] beta\n{\n  y = " + node + "\n}\n");
    const Node* norm = Find(*graph, op);
    return norm == nullptr ? -1 : norm->attributes.Float("epsilon", -1);
  };
  EXPECT_EQ(epsilon("com.microsoft::SkipSimplifiedLayerNormalization(x, skip, gamma)", "RmsNorm"), 1e-12);
  EXPECT_EQ(epsilon("com.microsoft::SkipLayerNormalization(x, skip, gamma, beta)", "LayerNormalization"), 1e-12);
  EXPECT_EQ(epsilon("com.microsoft::SimplifiedLayerNormalization(x, gamma)", "RmsNorm"), 1e-5);
  const auto gelu = Lower("graph g (float[batch,4] x) => (float[batch,4] y)\n{\n  y = com.microsoft::QuickGelu(x)\n}\n");
  EXPECT_EQ(Find(*gelu, "Sigmoid")->in(0)->producer->in(1)->data->AsFloats(), (std::vector<float>{1.702f}));
  const auto plain = Lower(
      "graph g (float[batch,sequence,8] q, float[batch,sequence,8] k, float[batch,sequence,8] v) => (float[batch,sequence,8] y)\n"
      "{\n  y = com.microsoft::MultiHeadAttention<num_heads = 2>(q, k, v)\n}\n");
  EXPECT_EQ(Find(*plain, "Attention")->attributes.Int("is_causal", -1), 0);
}

// Two experts of width 3 over rows of 4.
std::string Moe(const std::string& attributes, const std::string& inputs, int rows = 6) {
  return "graph g (float[batch,sequence,4] x, float[batch*sequence,2] logits) => "
         "(float[batch,sequence,4] y)\n"
         "parameter float[2," +
         std::to_string(rows) +
         ",4] fc1\nparameter float[2,4,3] fc2\nparameter float[2,3,4] fc3\n"
         "parameter float[2,6] b1\nparameter float[2,4] b2\n"
         "{\n  y = com.microsoft::MoE<" +
         attributes + ">(" + inputs + ")\n}\n";
}

TEST(LowerMoe, SwigluByTurnsWithNormalisedWeights) {
  const auto graph = Lower(
      Moe("activation_type = \"swiglu\", swiglu_fusion = 1, k = 2, normalize_routing_weights = 1, "
          "activation_alpha = 1.5, activation_beta = 1.0, swiglu_limit = 7.0",
          "x, logits, fc1, b1, fc2, b2"));
  const Node* experts = Find(*graph, "Experts");
  ASSERT_NE(experts, nullptr);
  EXPECT_EQ(experts->attributes.Float("alpha", 1), 1.5);
  EXPECT_EQ(experts->attributes.Float("beta", 0), 1);
  EXPECT_EQ(experts->attributes.Float("limit", 0), 7);
  EXPECT_EQ(experts->in(3)->parameter->initializers[0].deinterleave_axis, 1);
  EXPECT_EQ(experts->in(5)->parameter->initializers[0].deinterleave_axis, 1);
  EXPECT_EQ(experts->in(6)->name, "b2");
  // Softmax over the chosen logits equals the normalised share of a softmax over all.
  EXPECT_EQ(experts->in(2)->producer->op(), "Softmax");
  EXPECT_EQ(experts->in(2)->producer->in(0)->producer->op(), "TopK");
}

TEST(LowerMoe, AbsentLimitMeansNoClampAndIsSaid) {
  const auto graph = Lower(
      Moe("activation_type = \"swiglu\", swiglu_fusion = 2, k = 1", "x, logits, fc1, \"\", fc2"));
  const Node* experts = Find(*graph, "Experts");
  ASSERT_NE(experts, nullptr);
  EXPECT_FALSE(experts->attributes.Has("limit"));
  EXPECT_FALSE(experts->attributes.Has("alpha"));
  EXPECT_EQ(experts->in(3)->name, "fc1");  // gate rows first already
  EXPECT_NE(graph->notices[0].find("no swiglu_limit"), std::string::npos);
  // Raw softmax mass: chosen after the softmax.
  EXPECT_EQ(experts->in(2)->producer->op(), "TopK");
  EXPECT_EQ(experts->in(2)->producer->in(0)->producer->op(), "Softmax");
}

TEST(LowerMoe, SeparateUpWeightsAreStackedUnderTheGate) {
  const auto graph =
      Lower(Moe("activation_type = \"silu\", k = 1", "x, logits, fc1, \"\", fc2, \"\", fc3", 3));
  const Node* experts = Find(*graph, "Experts");
  ASSERT_NE(experts, nullptr);
  EXPECT_EQ(ToDims(experts->in(3)->shape), (Dims{2, 6, 4}));
  EXPECT_EQ(experts->in(3)->parameter->initializers[1].tensor, "fc3");
  EXPECT_EQ(experts->in(3)->parameter->initializers[1].offset, (Dims{0, 3, 0}));
}

TEST(LowerMoe, MissingBiasSlotIsNeverMisread) {
  // fc2 sits where a bias belongs: the node is refused, not read with shifted inputs.
  const std::string refusal =
      Refusal(Moe("activation_type = \"swiglu\", swiglu_fusion = 1, k = 1", "x, logits, fc1, fc2, b2"));
  EXPECT_NE(refusal.find("'b2' must be an initializer of rank 3"), std::string::npos) << refusal;
}

TEST(LowerMoe, UnknownPairingsAreRefusedInWords) {
  EXPECT_NE(Refusal(Moe("activation_type = \"silu\", k = 1", "x, logits, fc1, \"\", fc2"))
                .find("without fc3"),
            std::string::npos);
  EXPECT_NE(Refusal(Moe("activation_type = \"swiglu\", k = 1", "x, logits, fc1, \"\", fc2"))
                .find("swiglu_fusion 0"),
            std::string::npos);
  EXPECT_NE(Refusal(Moe("activation_type = \"identity\", k = 1", "x, logits, fc1, \"\", fc2"))
                .find("'identity'"),
            std::string::npos);
  EXPECT_NE(Refusal(Moe("activation_type = \"swiglu\", swiglu_fusion = 1, k = 1, swiglu_limit_after_activation = 1", "x, logits, fc1, \"\", fc2"))
                .find("swiglu_limit_after_activation"),
            std::string::npos);
  EXPECT_NE(Refusal(Moe("activation_type = \"swiglu\", swiglu_fusion = 1, k = 1",
                        "x, logits, fc1, \"\", fc2", 4))
                .find("expected 2 * 3"),
            std::string::npos);
  EXPECT_NE(Refusal(Moe("activation_type = \"silu\", k = 2, use_sparse_mixer = 1",
                        "x, logits, fc1, \"\", fc2, \"\", fc3", 3))
                .find("use_sparse_mixer"),
            std::string::npos);
}

// One row of four 4-bit values a byte pair; steps 0.5 and 2, zero point 8: by hand.
TEST(LowerQuantized, MatMulNBitsReadsBlocksLowNibbleFirst) {
  const auto graph = Lower(
      "graph g (float[batch,4] x) => (float[batch,2] y)\n"
      "constant uint8[2,2,1] packed = {152, 16, 255, 0}\n"
      "constant float[2,2] scales = {0.5, 2, 1, 1}\n"
      "{\n  y = com.microsoft::MatMulNBits<K = 4, N = 2, bits = 4, block_size = 2>(x, packed, "
      "scales)\n}\n");
  const auto values = graph->initializers.at("packed.dequantized")->AsFloats();
  EXPECT_EQ(values, (std::vector<float>{0, 0.5, -16, -14, 7, 7, -8, -8}));
  EXPECT_NE(graph->notices[0].find("quantised weights"), std::string::npos);
}

// One expert, H = I = 2, without the bits' number: two 4-bit values a byte; with the down projection's own number, one.
TEST(LowerQuantized, ExpertsHaveFourBitsUnlessTheySay) {
  const auto weights = [](const std::string& attributes, const std::string& fc2) {
    const auto graph = Lower(
        "graph g (float[batch,sequence,2] x, float[batch*sequence,1] logits) => (float[batch,sequence,2] y)\n"
        "constant uint8[1,4,1] fc1 = {152, 16, 255, 0}\nconstant float[1,4] scale1 = {0.5, 2, 1, 1}\n" + fc2 +
        "constant float[1,2] scale2 = {1, 2}\n"
        "{\n  y = com.microsoft::QMoE<k = 1, activation_type = \"swiglu\", swiglu_fusion = 2" + attributes +
        ">(x, logits, fc1, scale1, \"\", fc2, scale2)\n}\n");
    std::vector<float> all = graph->initializers.at("fc1.dequantized")->AsFloats();
    const auto down = graph->initializers.at("fc2.dequantized")->AsFloats();
    all.insert(all.end(), down.begin(), down.end());
    return all;
  };
  const std::vector<float> gate_up = {0, 0.5, -16, -14, 7, 7, -8, -8};
  std::vector<float> want = gate_up;
  want.insert(want.end(), {1, 2, 0, -2});
  EXPECT_EQ(weights("", "constant uint8[1,2,1] fc2 = {169, 120}\n"), want);
  EXPECT_EQ(weights(", fc2_expert_weight_bits = 8", "constant uint8[1,2,2] fc2 = {129, 130, 128, 127}\n"), want);
}

TEST(LowerQuantized, ZeroPointsAndBytesByHand) {
  const auto graph = Lower(
      "graph g (float[batch,2] x) => (float[batch,1] y)\n"
      "constant uint8[1,1,2] packed = {130, 125}\n"
      "constant float[1,1] scales = {0.25}\n"
      "constant uint8[1,1] zeros = {126}\n"
      "{\n  y = com.microsoft::MatMulNBits<K = 2, N = 1, bits = 8, block_size = 2>(x, packed, "
      "scales, zeros)\n}\n");
  EXPECT_EQ(graph->initializers.at("packed.dequantized")->AsFloats(),
            (std::vector<float>{1, -0.25}));
}

TEST(LowerQuantized, StoredIntegersBecomeAParameter) {
  const auto graph = Lower(
      "graph g (float[batch,2] x) => (float[batch,2] y)\n"
      "constant int8[2,2] q = {4, -4, 2, 1}\nconstant float[2] scale = {0.5, 2}\nconstant int8[2] "
      "zero = {0, 1}\n"
      "{\n  w = DequantizeLinear<axis = 0>(q, scale, zero)\n  y = MatMul(x, w)\n}\n");
  const Value* weight = graph->FindValue("y")->producer->in(1);
  EXPECT_TRUE(IsInitializer(weight));
  EXPECT_EQ(weight->data->AsFloats(), (std::vector<float>{2, -2, 2, 0}));
}

TEST(LowerQuantized, WrongSizesAndPrepackedLayoutsAreRefused) {
  const std::string head =
      "graph g (float[batch,4] x) => (float[batch,2] y)\nconstant float[2,2] scales = {1, 1, 1, "
      "1}\n";
  EXPECT_NE(Refusal(head + "constant uint8[3] packed = {1, 2, 3}\n{\n  y = "
                           "com.microsoft::MatMulNBits<K = 4, N = 2, bits = 4, block_size = 2>"
                           "(x, packed, scales)\n}\n")
                .find("InvalidShape"),
            std::string::npos);
  EXPECT_NE(Refusal(head + "constant uint8[2,2,1] packed = {1, 2, 3, 4}\n{\n  y = "
                           "com.microsoft::MatMulNBits<K = 4, N = 2, bits = 4, "
                           "block_size = 2, weight_prepacked = 1>(x, packed, scales)\n}\n")
                .find("prepack"),
            std::string::npos);
}

// Required inputs left out, and outputs that leave nothing to replace.
TEST(LowerContrib, HolesAreRefusedInWords) {
  const std::string head =
      "graph g (float[batch,sequence,8] x) => (float[batch,sequence,?] y)\n"
      "constant uint8[2,2,1] packed = {1, 2, 3, 4}\nconstant float[2,2] s = {1, 1, 1, 1}\n{\n";
  const std::string contrib = "com.microsoft::";
  for (const std::string& body : std::initializer_list<std::string>{
           "  y = " + contrib + "MatMulNBits<K = 8, N = 2, bits = 4, block_size = 2>(x, \"\", s)\n",
           "  y = " + contrib + "GatherBlockQuantized<bits = 4>(packed, \"\", s)\n",
           "  y = " + contrib + "MoE<k = 1>(x, \"\", s, \"\", s)\n",
           "  y = " + contrib + "FusedMatMul<transB = 1>(x, \"\")\n",
           "  y = " + contrib + "GroupQueryAttention<num_heads = 9223372036854775807, kv_num_heads = 1>(x)\n",
           "  \"\", y = " + contrib + "GroupQueryAttention<num_heads = 2, kv_num_heads = 1>(x)\n"}) {
    const std::string refusal = Refusal(head + body + "}\n");
    EXPECT_NE(refusal, "") << body;
    EXPECT_EQ(refusal.find("Internal"), std::string::npos) << refusal;
  }
}

TEST(LowerQuantized, SizesThatNoWeightHasAreRefused) {
  const auto nibbles = [](const std::string& attributes, const std::string& scales = "scales") {
    return Refusal("graph g (float[batch,4] x) => (float[batch,2] y)\n"
                   "constant float[2,2] scales = {1, 1, 1, 1}\nconstant uint8[2,2,1] packed = {1, 2, 3, 4}\n"
                   "constant int64[2,2,1] wide = {1, 2, 3, 4}\n{\n  y = com.microsoft::MatMulNBits<" +
                   attributes + ">(x, packed, " + scales + ")\n}\n");
  };
  const std::string most = "9223372036854775807";
  for (const std::string& attributes : std::initializer_list<std::string>{
           "K = 4, N = 2, bits = 0, block_size = 2", "K = " + most + ", N = 2, bits = 4, block_size = 2",
           "K = 0, N = 2, bits = 4, block_size = 0", "K = 4, N = -2, bits = 4, block_size = 2",
           "K = 4, N = 2, bits = 4, block_size = " + most}) {
    EXPECT_NE(nibbles(attributes), "") << attributes;
  }
  EXPECT_NE(nibbles("K = 4, N = 2, bits = 4, block_size = 2", "\"\"").find("required input 2 is missing"),
            std::string::npos);
  EXPECT_NE(nibbles("K = 4, N = 2, bits = 4, block_size = 2", "scales, wide").find("'wide' is int64"),
            std::string::npos);
}

std::pair<TensorDataPtr, TensorDataPtr> Tables(const std::vector<float>& inv_freq, double scale,
                                               int64_t rows, bool coarse) {
  std::vector<float> cos, sin;
  for (int64_t p = 0; p < rows; ++p) {
    for (float f : inv_freq) {
      const float angle = static_cast<float>(p) * f;
      for (auto* table : {&cos, &sin}) {
        const double value = scale * (table == &cos ? std::cos(static_cast<double>(angle))
                                                    : std::sin(static_cast<double>(angle)));
        const auto stored = static_cast<float>(value);
        table->push_back(coarse ? BFloat16ToFloat(FloatToBFloat16(stored)) : stored);
      }
    }
  }
  const Dims dims = {rows, static_cast<int64_t>(inv_freq.size())};
  return {TensorData::FromFloats(dims, cos), TensorData::FromFloats(dims, sin)};
}

TEST(RotaryCache, FrequenciesComeBackExactly) {
  const std::vector<float> inv_freq = {1, 0.31622776f, 0.012345f, 1e-4f};
  const auto [cos, sin] = Tables(inv_freq, 1.25, 4096, false);
  const auto found = RecoverFrequencies(*cos, *sin);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->scale, 1.25);
  for (size_t i = 0; i < inv_freq.size(); ++i)
    EXPECT_EQ(static_cast<float>(found->inv_freq[i]), inv_freq[i]) << i;
}

TEST(RotaryCache, TablesOfLowPrecisionAreNotGuessed) {
  const auto [cos, sin] = Tables({1, 0.1f}, 1, 256, true);
  EXPECT_FALSE(RecoverFrequencies(*cos, *sin).has_value());
}

}  // namespace
}  // namespace weir
