// A whole decoder of the kind that serving exports are: cache inputs and outputs, an attention
// mask, position ids, float16, the last token's logits only.
#include "graph_passes/pipeline.h"

#include <gtest/gtest.h>

#include "graph/error.h"
#include "graph/text.h"

namespace weir {
namespace {

const char* const kServing = R"(
graph serving (int32[batch,sequence] input_ids, int64[batch,sequence] attention_mask,
               int64[batch,sequence] position_ids, float16[batch,2,0,4] past_key_values.0.key,
               float16[batch,2,0,4] past_key_values.0.value)
  => (float16[batch,1,5] logits, float16[batch,2,sequence,4] present.0.key,
      float16[batch,2,sequence,4] present.0.value)
constant float16[5,8] embed = {1,2,3,4,5,6,7,8, 1,2,3,4,5,6,7,8, 1,2,3,4,5,6,7,8, 1,2,3,4,5,6,7,8,
                               1,2,3,4,5,6,7,8}
constant float16[8,8] wq = {1,0,0,0,0,0,0,0, 0,1,0,0,0,0,0,0, 0,0,1,0,0,0,0,0, 0,0,0,1,0,0,0,0,
                            0,0,0,0,1,0,0,0, 0,0,0,0,0,1,0,0, 0,0,0,0,0,0,1,0, 0,0,0,0,0,0,0,1}
constant float16[8] norm = {1,2,1,2,1,2,1,2}
constant float[1,2,1] frequencies = {1, 0.1}
{
  h = Gather(embed, input_ids)
  hf = Cast<to = 1>(h)
  square = Pow(hf, float[]{2})
  mean = ReduceMean(square, int64[1]{-1})
  shifted = Add(mean, float[]{1e-06})
  root = Sqrt(shifted)
  scaled = Div(hf, root)
  narrow = Cast<to = 10>(scaled)
  n = Mul(norm, narrow)
  q2 = MatMul(n, wq)
  q3 = Reshape(q2, int64[4]{0, -1, 2, 4})
  q = Transpose<perm = [0, 2, 1, 3]>(q3)
  p1 = Unsqueeze(position_ids, int64[1]{1})
  pf = Cast<to = 1>(p1)
  angle = MatMul(frequencies, pf)
  turned = Transpose<perm = [0, 2, 1]>(angle)
  both = Concat<axis = -1>(turned, turned)
  c = Cos(both)
  s = Sin(both)
  c16 = Cast<to = 10>(c)
  s16 = Cast<to = 10>(s)
  c4 = Unsqueeze(c16, int64[1]{1})
  s4 = Unsqueeze(s16, int64[1]{1})
  a, b = Split<axis = -1, num_outputs = 2>(q)
  minus = Neg(b)
  half = Concat<axis = -1>(minus, a)
  qc = Mul(q, c4)
  qs = Mul(half, s4)
  qr = Add(qc, qs)
  present.0.key = Concat<axis = 2>(past_key_values.0.key, qr)
  present.0.value = Concat<axis = 2>(past_key_values.0.value, q)
  kt = Transpose<perm = [0, 1, 3, 2]>(present.0.key)
  scores = MatMul(qr, kt)
  total = Shape<start = 1>(attention_mask)
  total0 = Squeeze(total)
  keys = Range(int64[]{0}, total0, int64[]{1})
  queries = Unsqueeze(position_ids, int64[2]{1, 3})
  order = LessOrEqual(keys, queries)
  real = Cast<to = 9>(attention_mask)
  real4 = Unsqueeze(real, int64[2]{1, 2})
  keep = And(order, real4)
  drop = Not(keep)
  weighted = Div(scores, float16[]{2})
  masked = Where(drop, float16[]{-65504}, weighted)
  probabilities = Softmax<axis = -1>(masked)
  y4 = MatMul(probabilities, present.0.value)
  y3 = Transpose<perm = [0, 2, 1, 3]>(y4)
  y = Reshape(y3, int64[3]{0, 0, 8})
  sum = Add(h, y)
  last = Gather<axis = 1>(sum, int64[]{-1})
  row = Unsqueeze(last, int64[1]{1})
  head = Transpose<perm = [1, 0]>(embed)
  logits = MatMul(row, head)
}
)";

const char* const kCanonical = R"(
graph serving (int64[batch,sequence] input_ids) => (float[batch,sequence,5] logits)
parameter float[5,8] embed
parameter float[8,8] wq.perm10
parameter float[8] norm
{
  h = Embedding(input_ids, embed)
  n = RmsNorm<epsilon = 1e-06>(h, norm)
  q2 = Linear(n, wq.perm10)
  q = Reshape(q2, int64[4]{0, 0, 2, 4})
  length = Shape<start = 1>(input_ids)
  cos, sin = RotaryTable<inv_freq = [1.0, 0.1], scale = 1.0>(length)
  r = Rotary(q, cos, sin)
  y = ai.weir::Attention<scale = 0.5>(r, r, q)
  o = Reshape(y, int64[3]{0, 0, 8})
  s = Add(h, o)
  logits = Linear(s, embed)
}
)";

std::unique_ptr<Graph> Serving() {
  auto graph = ParseText(kServing);
  for (Value* value : graph->ValuesWithRole(Role::kConstant)) {
    graph->initializers[value->name] = value->data;
  }
  return graph;
}

TEST(Canonicalize, ServingDecoderBecomesATrainingOne) {
  auto graph = Serving();
  PassManager passes;
  Canonicalize(*graph, {}, passes);
  EXPECT_EQ(CanonicalText(*graph), CanonicalText(*ParseText(kCanonical)));
  EXPECT_EQ(graph->FindValue("embed")->parameter->initializers[0].dtype, DType::kFloat16);
  std::string stripped;
  for (const std::string& line : graph->stripped) stripped += line + "\n";
  for (const char* word :
       {"attention_mask", "position_ids", "past_key_values.0.key", "present.0.key", "last-token"}) {
    EXPECT_NE(stripped.find(word), stripped.npos) << word << " in\n" << stripped;
  }
}

// Without the attention pass the same graph is still there, in plain ops.
TEST(Canonicalize, DisabledPassLeavesPlainOps) {
  auto graph = Serving();
  PassManager passes;
  passes.disabled = {"fuse_attention"};
  Canonicalize(*graph, {}, passes);
  const std::string text = CanonicalText(*graph);
  EXPECT_NE(text.find("Softmax"), text.npos);
  EXPECT_NE(text.find("Rotary("), text.npos);
}

TEST(Canonicalize, ListsWhatCannotBeTrained) {
  auto graph = ParseText(
      "graph g (int64[batch,sequence] input_ids) => (float[batch,sequence] y)\n"
      "{\n  y = Cast<to = 1>(input_ids)\n}\n");
  PassManager passes;
  try {
    Canonicalize(*graph, {}, passes);
    FAIL() << "a model without logits was accepted";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("is it the logits?"), std::string::npos) << error.message();
  }
}

}  // namespace
}  // namespace weir
