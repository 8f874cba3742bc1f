#include "graph_passes/fuse_experts.h"

#include <gtest/gtest.h>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph/text.h"

namespace weir {
namespace {

// Three experts of width 3 over rows of 4, two per token. `weights` declares the tensors, `body`
// goes from ids and w to y.
std::string Model(const std::string& weights, const std::string& body) {
  return "graph g (int64[batch,sequence] input_ids, float[batch*sequence,4] x) => "
         "(float[batch*sequence,4] y)\n" +
         weights +
         "constant int64[1] two = {2}\nconstant int64[1] last = {-1}\nconstant int64[1] one = {1}\n"
         "constant int64[3] routes = {-1, 2, 4}\n"
         "parameter float[3,4] gate\n{\n  scores = Linear(x, gate)\n  w, ids = TopK<axis = "
         "1>(scores, two)\n" +
         body + "}\n";
}

struct Result {
  std::unique_ptr<Graph> graph;
  PassContext context;
  const Node* experts = nullptr;
};

Result Fuse(const std::string& text) {
  Result result{ParseText(text), {}, nullptr};
  FuseExperts pass;
  pass.Run(*result.graph, result.context);
  VerifyGraph(*result.graph);
  for (const auto& node : result.graph->nodes()) {
    if (node->op() == "Experts") result.experts = node.get();
  }
  return result;
}

std::string Missed(const std::string& text) {
  const Result result = Fuse(text);
  EXPECT_EQ(result.experts, nullptr);
  return result.context.misses.empty() ? "" : result.context.misses[0];
}

const char* const kStacked = "parameter float[3,6,4] gate_up\nparameter float[3,4,3] down\n";

// Rows of gathered weights. `cut` makes gate and up from p [routes, 6].
std::string Batched(const std::string& cut, const std::string& weight = "w") {
  return "  flat = Reshape(ids, last)\n"
         "  x3 = Unsqueeze(x, one)\n"
         "  x4 = Expand(x3, routes1)\n"
         "  rows = Reshape(x4, pairs)\n"
         "  columns = Unsqueeze(rows, last)\n"
         "  gu = Gather<axis = 0>(gate_up, flat)\n"
         "  p3 = MatMul(gu, columns)\n"
         "  p = Squeeze(p3, last)\n" +
         cut +
         "  s = Sigmoid(g)\n  silu = Mul(g, s)\n  a = Mul(silu, u)\n"
         "  a3 = Unsqueeze(a, last)\n"
         "  d = Gather<axis = 0>(down, flat)\n"
         "  o3 = MatMul(d, a3)\n"
         "  o = Squeeze(o3, last)\n"
         "  wf = Reshape(" +
         weight +
         ", last)\n  wc = Unsqueeze(wf, last)\n"
         "  wo = Mul(o, wc)\n  back = Reshape(wo, routes)\n"
         "  y = ReduceSum<keepdims = 0>(back, one)\n";
}
const char* const kShapes =
    "constant int64[3] routes1 = {1, 2, 1}\nconstant int64[2] pairs = {-1, 4}\n";
const char* const kHalves = "  g, u = Split<axis = 1, num_outputs = 2>(p)\n";

TEST(FuseExperts, RowsOfGatheredWeightsBecomeExperts) {
  const Result result = Fuse(Model(std::string(kStacked) + kShapes, Batched(kHalves)));
  EXPECT_EQ(CanonicalText(*result.graph),
            "graph (int64[batch,sequence] input_ids, float[batch*sequence,4] x) => "
            "(float[batch*sequence,4] y)\n"
            "parameter float[3,4,3] down\n"
            "parameter float[3,4] gate\n"
            "parameter float[3,6,4] gate_up\n"
            "{\n"
            "  %0 = Linear(x, gate)\n"
            "  %1, %2 = TopK<axis = 1>(%0, int64[1]{2})\n"
            "  y = Experts(x, %2, %1, gate_up, down)\n"
            "}\n");
}

TEST(FuseExperts, RowsByTurnsAreDeinterleaved) {
  const std::string cut =
      "  g = Slice(p, zero, end, one, two)\n  u = Slice(p, one, end, one, two)\n";
  const Result result =
      Fuse(Model(std::string(kStacked) + kShapes +
                     "constant int64[1] zero = {0}\nconstant int64[1] end = {99}\n",
                 Batched(cut)));
  ASSERT_NE(result.experts, nullptr);
  const auto& pieces = result.experts->in(3)->parameter->initializers;
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].tensor, "gate_up");
  EXPECT_EQ(pieces[0].deinterleave_axis, 1);
}

TEST(FuseExperts, WeightsOfTheRouterStayGeneric) {
  const std::string normalised =
      "  sum = ReduceSum(w, last)\n  v = Div(w, sum)\n" + Batched(kHalves, "v");
  const Result result = Fuse(Model(std::string(kStacked) + kShapes, normalised));
  ASSERT_NE(result.experts, nullptr);
  EXPECT_EQ(result.experts->in(2)->producer->op(), "Div");
}

TEST(FuseExperts, SentinelClipsAndMasksThatDoNothingVanish) {
  std::string body = Batched(kHalves);
  body.replace(body.find("flat = Reshape(ids, last)"), 25,
               "raw = Reshape(ids, last)\n  flat = Clip(raw, zero, top)\n  valid = Less(raw, "
               "count)\n  v = Cast<to = 1>(valid)\n"
               "  vc = Unsqueeze(v, last)");
  body.replace(body.find("wo = Mul(o, wc)"), 15, "wv = Mul(o, wc)\n  wo = Mul(wv, vc)");
  const Result result = Fuse(Model(
      std::string(kStacked) + kShapes +
          "constant int64[] zero = {0}\nconstant int64[] top = {2}\nconstant int64[] count = {3}\n",
      body));
  ASSERT_NE(result.experts, nullptr);
  EXPECT_EQ(result.graph->nodes().size(), 3u);
}

TEST(FuseExperts, GeluByItsTanhFormula) {
  std::string body = Batched(kHalves);
  const size_t from = body.find("  s = Sigmoid(g)"), to = body.find("  a3 = ");
  body.replace(from, to - from,
               "  c = Pow(g, three)\n  d1 = Mul(c, k1)\n  d2 = Add(g, d1)\n  d3 = Mul(d2, k2)\n  t "
               "= Tanh(d3)\n"
               "  t1 = Add(t, k3)\n  t2 = Mul(t1, half)\n  t3 = Mul(g, t2)\n  a = Mul(t3, u)\n");
  const Result result =
      Fuse(Model(std::string(kStacked) + kShapes +
                     "constant float[] three = {3}\nconstant float[] k1 = {0.044715}\nconstant "
                     "float[] half = {0.5}\n"
                     "constant float[] k2 = {0.7978846}\nconstant float[] k3 = {1}\n",
                 body));
  ASSERT_NE(result.experts, nullptr);
  EXPECT_EQ(result.experts->attributes.String("activation", ""), "gelu_tanh");
}

// A learned factor per expert stays in the router: y = sum w * factor[id] * expert(x).
TEST(FuseExperts, AFactorPerExpertIsPartOfTheWeight) {
  const std::string body =
      "  f = Gather<axis = 0>(factor, ids)\n  v = Mul(w, f)\n" + Batched(kHalves, "v");
  const Result result =
      Fuse(Model(std::string(kStacked) + kShapes + "parameter float[3] factor\n", body));
  ASSERT_NE(result.experts, nullptr);
  EXPECT_EQ(result.experts->in(2)->name, "v");
}

TEST(FuseExperts, UpBeforeGateIsRefusedInWords) {
  const std::string cut = "  u, g = Split<axis = 1, num_outputs = 2>(p)\n";
  EXPECT_NE(
      Missed(Model(std::string(kStacked) + kShapes, Batched(cut))).find("the gate is cut at 3"),
      std::string::npos);
}

// The weighed rows of all routes go through `change`, which may use a length that inference cannot
// know: `some`, as long as there are routes to experts other than 0.
std::string Changed(const std::string& change) {
  std::string body = Batched(kHalves);
  body.replace(body.find("  back = Reshape(wo,"), 20,
               "  found = NonZero(ids)\n  some = Reshape(found, last)\n" + change +
                   "  back = Reshape(changed,");
  return Model(std::string(kStacked) + kShapes + "constant int64[2] each = {-1, 1}\n", body);
}

TEST(FuseExperts, SliceListsOfDifferentLengthsAreRefused) {
  const std::string why = Missed(Changed("  changed = Slice(wo, some, one, one)\n"));
  EXPECT_NE(why.find("slices with lists of different lengths"), std::string::npos) << why;
}

TEST(FuseExperts, ScatteredRowsThatDoNotMatchTheirIndicesAreRefused) {
  const std::string why =
      Missed(Changed("  at = Reshape(some, each)\n  changed = ScatterND(wo, at, wo)\n"));
  EXPECT_NE(why.find("scatters updates of another shape"), std::string::npos) << why;
}

// An export of one fixed number of tokens cannot be run at another.
TEST(FuseExperts, AFixedNumberOfTokensIsRefusedInWords) {
  std::string text = Model(std::string(kStacked) + kShapes, Batched(kHalves));
  for (size_t at = 0; (at = text.find("batch*sequence", at)) != text.npos;) text.replace(at, 14, "7");
  EXPECT_NE(Missed(text).find("are not 2 per token"), std::string::npos) << Missed(text);
}

TEST(FuseExperts, ExpertsInAnotherOrderAreRefused) {
  std::string body = Batched(kHalves);
  body.replace(body.find("flat = Reshape(ids, last)"), 25,
               "raw = Reshape(ids, last)\n  flat = Sub(top, raw)");
  const std::string why =
      Missed(Model(std::string(kStacked) + kShapes + "constant int64[] top = {2}\n", body));
  EXPECT_NE(why.find("expert 0 does not use entry 0 of 'gate_up'"), std::string::npos) << why;
}

TEST(FuseExperts, AClipThatJoinsTwoExpertsIsRefused) {
  std::string body = Batched(kHalves);
  body.replace(body.find("flat = Reshape(ids, last)"), 25,
               "raw = Reshape(ids, last)\n  flat = Clip(raw, zero, top)");
  const std::string text = Model(
      std::string(kStacked) + kShapes + "constant int64[] zero = {0}\nconstant int64[] top = {1}\n",
      body);
  EXPECT_NE(Missed(text).find("expert 2 does not use entry 2"), std::string::npos);
}

TEST(FuseExperts, RowsGivenBackToAnotherTokenAreRefused) {
  std::string body = Batched(kHalves);
  body.replace(body.find("back = Reshape(wo, routes)"), 26,
               "h = Slice(wo, two, end, zero)\n  t = Slice(wo, zero, two, zero)\n  roll = "
               "Concat<axis = 0>(h, t)\n"
               "  back = Reshape(roll, routes)");
  const std::string why =
      Missed(Model(std::string(kStacked) + kShapes +
                       "constant int64[1] zero = {0}\nconstant int64[1] end = {99}\n",
                   body));
  EXPECT_NE(why.find("another token's weight"), std::string::npos) << why;
}

TEST(FuseExperts, AnActivationOfAnotherShapeIsRefused) {
  std::string body = Batched(kHalves);
  body.replace(body.find("a = Mul(silu, u)"), 16, "a = Mul(silu, s)");
  EXPECT_NE(
      Missed(Model(std::string(kStacked) + kShapes, body)).find("gate and up are no projections"),
      std::string::npos);
}

// One expert on every token, weighed by a mask; its own three matrices [in,out].
std::string Masked(int expert, const std::string& before) {
  const std::string e = std::to_string(expert);
  return "  g" + e + " = MatMul(x, gate" + e + ")\n  u" + e + " = MatMul(x, up" + e + ")\n  s" + e +
         " = Sigmoid(g" + e + ")\n  t" + e + " = Mul(g" + e + ", s" + e + ")\n  a" + e +
         " = Mul(t" + e + ", u" + e + ")\n  o" + e + " = MatMul(a" + e + ", down" + e + ")\n  q" +
         e + " = Equal(ids, n" + e + ")\n  m" + e + " = Cast<to = 1>(q" + e + ")\n  k" + e +
         " = Mul(w, m" + e + ")\n  c" + e + " = ReduceSum(k" + e + ", last)\n  z" + e + " = Mul(o" +
         e + ", c" + e + ")\n" +
         (before.empty() ? "" : "  y" + e + " = Add(" + before + ", z" + e + ")\n");
}
std::string SeparateTensors(int experts) {
  std::string text;
  for (int e = 0; e < experts; ++e) {
    const std::string n = std::to_string(e);
    text += "parameter float[4,3] gate" + n + "\nparameter float[4,3] up" + n +
            "\nparameter float[3,4] down" + n + "\nconstant int64[] n" + n + " = {" + n + "}\n";
  }
  return text;
}

TEST(FuseExperts, EveryExpertOnEveryTokenUnderAMaskIsStacked) {
  std::string body = Masked(0, "") + Masked(1, "z0") + Masked(2, "y1");
  body.replace(body.rfind("  y2 = "), 7, "  y = ");
  const Result result = Fuse(Model(SeparateTensors(3), body));
  ASSERT_NE(result.experts, nullptr);
  EXPECT_EQ(ToDims(result.experts->in(3)->shape), (Dims{3, 6, 4}));
  EXPECT_EQ(ToDims(result.experts->in(4)->shape), (Dims{3, 4, 3}));
  const auto& pieces = result.experts->in(3)->parameter->initializers;
  ASSERT_EQ(pieces.size(), 6u);
  EXPECT_EQ(pieces[1].tensor, "gate1");
  EXPECT_EQ(pieces[1].offset, (Dims{1, 0, 0}));
  EXPECT_EQ(pieces[1].perm, (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(pieces[4].tensor, "up1");
  EXPECT_EQ(pieces[4].offset, (Dims{1, 3, 0}));
}

// All experts at once on repeated rows, weights scattered into [N,E]; the file stores biases as
// [E,1,..].
TEST(FuseExperts, ABatchedProductUnderScatteredWeights) {
  const Result result = Fuse(Model(
      "parameter float[3,4,6] gu\nparameter float[3,1,6] gub\nparameter float[3,3,4] down\n"
      "parameter float[3,1,4] downb\nconstant int64[2] tile = {3, 1}\nconstant int64[1] zero = "
      "{0}\n"
      "constant int64[1] end = {99}\nconstant float[] none = {0}\nconstant int64[3] each = {3, -1, "
      "4}\n",
      "  ss = Shape(scores)\n  zeros = Expand(none, ss)\n"
      "  dense = ScatterElements<axis = 1>(zeros, ids, w)\n"
      "  xs = Tile(x, tile)\n  xe = Reshape(xs, each)\n  p0 = MatMul(xe, gu)\n  p = Add(p0, gub)\n"
      "  g = Slice(p, zero, end, last, two)\n  u = Slice(p, one, end, last, two)\n"
      "  s = Sigmoid(g)\n  t = Mul(g, s)\n  a = Mul(t, u)\n  o0 = MatMul(a, down)\n  o = Add(o0, "
      "downb)\n"
      "  dt = Transpose<perm = [1, 0]>(dense)\n  d3 = Unsqueeze(dt, last)\n  z = Mul(o, d3)\n"
      "  y = ReduceSum<keepdims = 0>(z, zero)\n"));
  ASSERT_NE(result.experts, nullptr);
  EXPECT_EQ(ToDims(result.experts->in(3)->shape), (Dims{3, 6, 4}));
  EXPECT_EQ(result.experts->in(3)->parameter->initializers[0].perm,
            (std::vector<int64_t>{0, 2, 1}));
  EXPECT_EQ(result.experts->in(3)->parameter->initializers[0].deinterleave_axis, 1);
  EXPECT_EQ(ToDims(result.experts->in(5)->shape), (Dims{3, 6}));
  EXPECT_EQ(result.experts->in(5)->parameter->initializers[0].dims, (Dims{3, 6}));
  EXPECT_EQ(ToDims(result.experts->in(6)->shape), (Dims{3, 4}));
}

TEST(FuseExperts, ALoopOverFewerExpertsThanTheRouterKnowsIsAnError) {
  std::string body = Masked(0, "") + Masked(1, "z0");
  body.replace(body.rfind("  y1 = "), 7, "  y = ");
  try {
    Fuse(Model(SeparateTensors(2), body));
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidModel);
    EXPECT_NE(error.message().find("a loop over 2 of 3 experts"), std::string::npos)
        << error.message();
    EXPECT_NE(error.message().find("batched_mm or grouped_mm"), std::string::npos);
  }
}

TEST(FuseExperts, TwoExpertsSharingAMatrixAreRefused) {
  std::string body = Masked(0, "") + Masked(1, "z0") + Masked(2, "y1");
  body.replace(body.rfind("  y2 = "), 7, "  y = ");
  body.replace(body.find("up2)"), 4, "up1)");
  EXPECT_NE(Missed(Model(SeparateTensors(3), body)).find("expert 2 shares 'up1'"),
            std::string::npos);
}

}  // namespace
}  // namespace weir
