// Each spelling of attention that exporters write becomes one Attention of the same function.
#include "graph_passes/fuse_attention.h"

#include "tests/graph_passes/equivalence.h"
#include "tests/graph_passes/golden.h"

namespace weir {
namespace {

const std::string kPositions =
    "  s = Shape<start = 1>(ids)\n  n = Squeeze(s)\n  r = Range(int64[]{0}, n, int64[]{1})\n"
    "  kp = Unsqueeze(r, int64[1]{0})\n  qp = Unsqueeze(r, int64[1]{1})\n  keep = LessOrEqual(kp, "
    "qp)\n";
const std::string kAdded = "  mask = Where(keep, float[]{0}, float[]{-inf})\n";

std::string Text(const std::string& body, const std::string& kv_heads = "4",
                 const std::string& sinks = "") {
  return "graph g (int64[batch,sequence] ids, float[batch,4,sequence,16] q, float[batch," +
         kv_heads + ",sequence,16] k, float[batch," + kv_heads + ",sequence,8] v" + sinks +
         ") => (float[batch,4,sequence,8] y)\n{\n" + kPositions + body + "}\n";
}

const std::string kScores = "  kt = Transpose<perm = [0, 1, 3, 2]>(k)\n  p = MatMul(q, kt)\n";
const std::string kScaled = kScores + "  z = Mul(p, float[]{0.25})\n";
const std::string kFinish = "  w = Softmax<axis = -1>(l)\n  y = MatMul(w, v)\n";
const std::string kRepeat =
    "  b = Shape<end = 1>(ids)\n"
    "  k5 = Unsqueeze(k0, int64[1]{2})\n  ke = Concat<axis = 0>(b, int64[2]{2, 2}, s, "
    "int64[1]{16})\n"
    "  k6 = Expand(k5, ke)\n  kr = Concat<axis = 0>(b, int64[1]{4}, s, int64[1]{16})\n  k = "
    "Reshape(k6, kr)\n"
    "  v5 = Unsqueeze(v0, int64[1]{2})\n  ve = Concat<axis = 0>(b, int64[2]{2, 2}, s, "
    "int64[1]{8})\n"
    "  v6 = Expand(v5, ve)\n  vr = Concat<axis = 0>(b, int64[1]{4}, s, int64[1]{8})\n  v = "
    "Reshape(v6, vr)\n";

std::string Repeated(const std::string& body) {
  return "graph g (int64[batch,sequence] ids, float[batch,4,sequence,16] q, "
         "float[batch,2,sequence,16] k0, "
         "float[batch,2,sequence,8] v0) => (float[batch,4,sequence,8] y)\n{\n" +
         kPositions + kRepeat + body + "}\n";
}

struct Spelling {
  const char* name;
  std::string text;
  std::string attributes;
};

std::vector<Spelling> Spellings() {
  const std::string window =
      "  o = Sub(qp, int64[]{3})\n  g = Greater(kp, o)\n  in = And(keep, g)\n";
  const std::string sinks =
      "  b = Shape<end = 1>(ids)\n  t1 = Reshape(t, int64[4]{1, -1, 1, 1})\n"
      "  te = Concat<axis = 0>(b, int64[1]{1}, s, int64[1]{1})\n  t2 = Expand(t1, te)\n"
      "  cat = Concat<axis = -1>(l, t2)\n  max = ReduceMax(cat, int64[1]{-1})\n  d = Sub(cat, "
      "max)\n"
      "  w0 = Softmax<axis = -1>(d)\n"
      "  w = Slice(w0, int64[1]{0}, int64[1]{-1}, int64[1]{-1})\n  y = MatMul(w, v)\n";
  return {
      {"eager", Text(kScaled + kAdded + "  l = Add(z, mask)\n" + kFinish), "<scale = 0.25>"},
      {"divided",
       Text(kScores + "  z = Div(p, float[]{4})\n" + kAdded + "  l = Add(mask, z)\n" + kFinish),
       "<scale = 0.25>"},
      {"no_mask", Text(kScaled + "  w = Softmax<axis = -1>(z)\n  y = MatMul(w, v)\n"),
       "<causal = 0, scale = 0.25>"},
      {"where_keep", Text(kScaled + "  l = Where(keep, z, float[]{-65504})\n" + kFinish),
       "<scale = 0.25>"},
      {"where_drop",
       Text(kScaled + "  drop = Not(keep)\n  l = Where(drop, float[]{-1e+30}, z)\n" + kFinish),
       "<scale = 0.25>"},
      {"window", Text(kScaled + window + "  l = Where(in, z, float[]{-inf})\n" + kFinish),
       "<scale = 0.25, window = 3>"},
      {"two_masks",
       Text(kScaled + window + "  a = Where(g, z, float[]{-inf})\n" + kAdded +
            "  l = Add(a, mask)\n" + kFinish),
       ""},
      {"split_scale_guard",
       Repeated("  qs = Mul(q, float[]{0.5})\n"
                "  d = Shape(k)\n  k3 = Reshape(k, int64[3]{-1, 0, 16})\n" +
                std::string("  kb = Reshape(k, int64[4]{0, 0, -1, 16})\n") +
                "  kt = Transpose<perm = [0, 1, 3, 2]>(kb)\n"
                "  ks = Mul(kt, float[]{0.5})\n  p = MatMul(qs, ks)\n" +
                kAdded +
                "  l = Add(p, mask)\n  w1 = Softmax<axis = -1>(l)\n  nan = IsNaN(w1)\n"
                "  w = Where(nan, float[]{0}, w1)\n  y = MatMul(w, v)\n"),
       "<scale = 0.25>"},
      {"repeated", Repeated(kScaled + kAdded + "  l = Add(z, mask)\n" + kFinish), "<scale = 0.25>"},
      {"softcap",
       Text(kScaled + "  c = Div(z, float[]{8})\n  h = Tanh(c)\n  u = Mul(h, float[]{8})\n" +
            kAdded + "  l = Add(u, mask)\n" + kFinish),
       "<scale = 0.25, softcap = 8.0>"},
      {"sinks", Text(kScaled + kAdded + "  l = Add(z, mask)\n" + sinks, "4", ", float[4] t"),
       "<scale = 0.25>"},
      {"operator", Text("  y = ai.onnx::Attention<scale = 0.25>(q, k, v, keep)\n"),
       "<scale = 0.25>"},
      {"operator_causal_groups", Text("  y = ai.onnx::Attention<is_causal = 1>(q, k, v)\n", "2"),
       "<scale = 0.25>"},
      {"operator_flat",
       "graph g (int64[batch,sequence] ids, float[batch,sequence,64] q, float[batch,sequence,32] "
       "k, "
       "float[batch,sequence,16] v) => (float[batch,sequence,32] y)\n{\n" +
           kPositions +
           "  y = ai.onnx::Attention<is_causal = 1, kv_num_heads = 2, q_num_heads = 4>(q, k, "
           "v)\n}\n",
       "<scale = 0.25>"},
  };
}

std::string Fuse(Graph& graph, PassContext& context) {
  CleanForTest(graph, false);
  FuseAttention pass;
  pass.Run(graph, context);
  CleanForTest(graph, true);
  return CanonicalText(graph);
}

TEST(FuseAttention, TakesEverySpelling) {
  for (const Spelling& spelling : Spellings()) {
    SCOPED_TRACE(spelling.name);
    const auto before = ParseText(spelling.text), after = ParseText(spelling.text);
    PassContext context;
    const std::string text = Fuse(*after, context);
    EXPECT_NE(text.find("ai.weir::Attention" + spelling.attributes), text.npos) << text;
    EXPECT_EQ(text.find("Softmax"), text.npos) << text;
    EXPECT_EQ(text.find("Expand"), text.npos) << text;
    EXPECT_EQ(context.misses.size(), 0u);
    ExpectEquivalent(*before, *after, 1e-12);
  }
}

TEST(FuseAttention, ReportsNearMisses) {
  const std::string alibi = "  f = Cast<to = 1>(r)\n  mask = Mul(f, float[]{-0.5})\n";
  const std::string cases[] = {
      Text(kScaled + alibi + "  l = Add(z, mask)\n" + kFinish),
      // A column cut from the probabilities that is no sink.
      Text(kScaled +
           "  w0 = Softmax<axis = -1>(z)\n  w1 = Slice(w0, int64[1]{0}, int64[1]{-1}, "
           "int64[1]{-1})\n"
           "  v1 = Slice(v, int64[1]{0}, int64[1]{-1}, int64[1]{2})\n  y = MatMul(w1, v1)\n"),
  };
  for (const std::string& text : cases) {
    const auto graph = ParseText(text);
    PassContext context;
    EXPECT_NE(Fuse(*graph, context).find("Softmax"), std::string::npos);
    EXPECT_EQ(context.misses.size(), 1u) << text;
  }
}

TEST(FuseAttention, OperatorWithUsedCacheStays) {
  const auto graph = ParseText(
      "graph g (int64[batch,sequence] ids, float[batch,4,sequence,16] q) => "
      "(float[batch,4,sequence,16] y)\n"
      "{\n  a, p, c = ai.onnx::Attention<is_causal = 1>(q, q, q)\n  y = Add(a, p)\n}\n");
  PassContext context;
  Fuse(*graph, context);
  EXPECT_EQ(context.misses.size(), 1u);
}

}  // namespace
}  // namespace weir
