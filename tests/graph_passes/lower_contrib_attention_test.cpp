#include <gtest/gtest.h>

#include <cmath>

#include "graph/op_schema.h"
#include "tests/graph_passes/lowered.h"

namespace weir {
namespace {

TEST(GroupQueryAttention, PackedHeadsWithWindowAndSinks) {
  const auto graph = Lower(
      "graph g (int64[batch,sequence] input_ids, float[batch,sequence,32] qkv, float[batch,2,?,8] "
      "past_k, float[batch,2,?,8] past_v, "
      "int32[batch] seqlens, int32[] total) => (float[batch,sequence,16] y, float present_k, float "
      "present_v)\n"
      "parameter float[2] sinks\n"
      "{\n  y, present_k, present_v = com.microsoft::GroupQueryAttention<num_heads = 2, "
      "kv_num_heads = 1, local_window_size = 5>"
      "(qkv, \"\", \"\", past_k, past_v, seqlens, total, \"\", \"\", \"\", \"\", sinks)\n}\n");
  const Node* attention = Find(*graph, "Attention");
  ASSERT_NE(attention, nullptr);
  EXPECT_EQ(ToString(attention->in(0)->shape), "[batch,sequence,2,8]");
  EXPECT_EQ(ToString(attention->in(1)->shape), "[batch,sequence,1,8]");
  EXPECT_EQ(attention->in(3)->name, "sinks");
  EXPECT_EQ(attention->attributes.Int("window", 0), 5);
  EXPECT_DOUBLE_EQ(attention->attributes.Float("scale", 0), 1 / std::sqrt(8.0));
  EXPECT_EQ(graph->outputs.size(), 1u);
  EXPECT_EQ(graph->stripped.size(), 2u);
}

// Four channels of two heads over one: packed, with a gain for queries (input 14) and one for keys (15).
std::unique_ptr<Graph> Query(const std::string& attributes) {
  return Lower(
      "graph g (int64[batch,sequence] input_ids, float[batch,sequence,16] qkv, int32[batch] seqlens, int32[] total) => "
      "(float[batch,sequence,8] y)\n"
      "constant float[3,2] cos = {1, 1, 0.5, 0.75, 0.25, 0.5}\nconstant float[3,2] sin = {0, 0, 0.5, 0.75, 0.25, 0.5}\n"
      "parameter float[4] gain\n"
      "{\n  y = com.microsoft::GroupQueryAttention<num_heads = 2, kv_num_heads = 1" + attributes +
      ">(qkv, \"\", \"\", \"\", \"\", seqlens, total, cos, sin, \"\", \"\", \"\", \"\", \"\", gain, gain)\n}\n");
}

TEST(GroupQueryAttention, AbsentAttributesHaveTheSchemasDefaults) {
  const auto graph = Query(", do_rotary = 1");
  const Node* attention = Find(*graph, "Attention");
  ASSERT_NE(attention, nullptr);
  for (const size_t i : {0, 1}) {
    const Node& rotary = *attention->in(i)->producer;
    ASSERT_EQ(rotary.op(), "Rotary");
    EXPECT_EQ(rotary.attributes.Int("input_interleaved", 0), 0);
    EXPECT_EQ(rotary.attributes.Int("output_interleaved", 0), 0);
    EXPECT_EQ(rotary.in(0)->producer->attributes.Float("epsilon", -1), 1e-6);
  }
  EXPECT_EQ(attention->in(3), nullptr) << "no sinks";
  EXPECT_EQ(attention->attributes.Int("window", 0), 0);
  EXPECT_EQ(attention->attributes.Int("causal", 1), 1);
  const auto turned = Query(", do_rotary = 1, rotary_interleaved = 1");
  EXPECT_EQ(Find(*turned, "Rotary")->attributes.Int("input_interleaved", 0), 1);
  EXPECT_EQ(Find(*Query(""), "Rotary"), nullptr);
}

TEST(GroupQueryAttention, OwnEpsilonsGoBeforeTheCommonOne) {
  const auto graph = Query(", qk_norm_epsilon = 0.25, k_norm_epsilon = 0.5");
  const Node* attention = Find(*graph, "Attention");
  EXPECT_EQ(attention->in(0)->producer->attributes.Float("epsilon", -1), 0.25);
  EXPECT_EQ(attention->in(1)->producer->attributes.Float("epsilon", -1), 0.5);
  EXPECT_EQ(Find(*Query(", q_norm_epsilon = 0.125"), "Attention")->in(0)->producer->attributes.Float("epsilon", -1), 0.125);
}

// Only 1 asks for it: the schema's own default is -1.
TEST(GroupQueryAttention, SmoothSoftmaxIsASinkOfZero) {
  EXPECT_EQ(Find(*Query(", smooth_softmax = -1"), "Attention")->in(3), nullptr);
  EXPECT_EQ(Find(*Query(", smooth_softmax = 0"), "Attention")->in(3), nullptr);
  const auto graph = Query(", smooth_softmax = 1");
  ASSERT_NE(Find(*graph, "Attention")->in(3), nullptr);
  EXPECT_EQ(Find(*graph, "Attention")->in(3)->data->AsFloats(), (std::vector<float>{0, 0}));
}

TEST(MultiHeadAttention, BecomesTheOnnxOperatorWithSplitBias) {
  const auto graph = Lower(
      "graph g (float[batch,sequence,8] q, float[batch,sequence,8] k, float[batch,sequence,8] v) "
      "=> "
      "(float[batch,sequence,8] y)\nparameter float[24] bias\n"
      "{\n  y = com.microsoft::MultiHeadAttention<num_heads = 2, unidirectional = 1>(q, k, v, "
      "bias)\n}\n");
  const Node* attention = Find(*graph, "Attention");
  ASSERT_NE(attention, nullptr);
  EXPECT_EQ(attention->schema->domain, "");
  EXPECT_EQ(attention->attributes.Int("q_num_heads", 0), 2);
  EXPECT_EQ(attention->attributes.Int("is_causal", 0), 1);
  EXPECT_EQ(attention->in(2)->producer->op(), "Add");
  EXPECT_EQ(attention->in(2)->producer->in(1)->producer->op(), "Split");
}

TEST(MultiHeadAttention, MasksAndPackedInputsAreRefusedInWords) {
  const std::string head =
      "graph g (float[batch,sequence,8] q, float[batch,sequence,8] k, float[batch,sequence,8] v, "
      "int32[batch] mask) "
      "=> (float[batch,sequence,8] y)\n{\n  y = com.microsoft::MultiHeadAttention<num_heads = 2>";
  EXPECT_NE(Refusal(head + "(q, k, v, \"\", mask)\n}\n").find("key padding mask"),
            std::string::npos);
  EXPECT_NE(Refusal(head + "(q)\n}\n").find("not packed ones"), std::string::npos);
}

}  // namespace
}  // namespace weir
