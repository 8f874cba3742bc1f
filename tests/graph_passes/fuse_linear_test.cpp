#include "graph_passes/fuse_linear.h"

#include "graph/parameter.h"
#include "tests/graph_passes/golden.h"

namespace weir {
namespace {

const char* const kHead =
    "graph (int64[batch,sequence] ids, float[batch,sequence,2] x) => (float[batch,sequence,3] y)\n";
const std::string kInOut = "constant float[2,3] w = {1, 2, 3, 4, 5, 6}\n";
const std::string kOutIn = "constant float[3,2] w = {1, 2, 3, 4, 5, 6}\n";
const std::string kBias = "constant float[3] b = {7, 8, 9}\n";

void Expect(const std::string& before, const std::string& after) {
  FuseLinear pass;
  ExpectPass(pass, kHead + before, kHead + after);
}

TEST(FuseLinear, MatMulWithBiasTransposesTheWeight) {
  Expect(
      kInOut + kBias + "{\n  p = MatMul(x, w)\n  y = Add(b, p)\n}\n",
      "parameter float[3,2] w.perm10\nparameter float[3] b\n{\n  y = Linear(x, w.perm10, b)\n}\n");
}

TEST(FuseLinear, TransposeNodeIsTheWeightAsStored) {
  Expect(kOutIn + "{\n  t = Transpose<perm = [1, 0]>(w)\n  y = MatMul(x, t)\n}\n",
         "parameter float[3,2] w\n{\n  y = Linear(x, w)\n}\n");
}

TEST(FuseLinear, BiasOfAnotherWidthStaysOutside) {
  Expect(kInOut + "constant float[1] b = {7}\n{\n  p = MatMul(x, w)\n  y = Add(p, b)\n}\n",
         "parameter float[3,2] w.perm10\nconstant float[1] b = {7}\n{\n  p = Linear(x, w.perm10)\n "
         " y = Add(p, b)\n}\n");
}

TEST(FuseLinear, GemmScalesItsTerms) {
  const std::string head = "graph (float[batch*sequence,2] x) => (float[batch*sequence,3] y)\n";
  FuseLinear pass;
  ExpectPass(pass, head + kOutIn + kBias + "{\n  y = Gemm<transB = 1>(x, w, b)\n}\n",
             head + "parameter float[3,2] w\nparameter float[3] b\n{\n  y = Linear(x, w, b)\n}\n");
  ExpectPass(
      pass, head + kInOut + kBias + "{\n  y = Gemm<alpha = 0.5, beta = 2.0>(x, w, b)\n}\n",
      head +
          "parameter float[3,2] w.perm10\nparameter float[3] b\n{\n  p = Linear(x, w.perm10)\n"
          "  s = Mul(p, float[]{0.5})\n  c = Mul(b, float[]{2})\n  y = Add(s, c)\n}\n");
}

TEST(FuseLinear, TiedEmbeddingIsOneParameter) {
  const std::string head = "graph (int64[batch,sequence] ids) => (float[batch,sequence,3] y)\n";
  FuseLinear pass;
  // The head is stored [in,out]; the embedding reads it through a Transpose.
  ExpectPass(
      pass,
      head + kInOut +
          "{\n  t = Transpose<perm = [1, 0]>(w)\n  e = Gather(t, ids)\n  y = MatMul(e, w)\n}\n",
      head +
          "parameter float[3,2] w.perm10\n{\n  e = Embedding(ids, w.perm10)\n  y = Linear(e, "
          "w.perm10)\n}\n");
}

TEST(FuseLinear, TwoLayoutsOfOneTensorStayOneParameter) {
  const std::string head = "graph (float[batch,sequence,2] x) => (float[batch,sequence,2] y)\n";
  const auto graph = ReadGolden(
      head +
      "constant float[2,2] w = {1, 2, 3, 4}\n"
      "{\n  a = MatMul(x, w)\n  t = Transpose<perm = [1, 0]>(w)\n  y = MatMul(a, t)\n}\n");
  FuseLinear pass;
  PassContext context;
  EXPECT_TRUE(pass.Run(*graph, context));
  VerifyGraph(*graph);
  ASSERT_EQ(graph->ValuesWithRole(Role::kParameter).size(), 1u);
  EXPECT_EQ(LoadParameter(*graph, *graph->ValuesWithRole(Role::kParameter)[0]),
            (std::vector<float>{1, 3, 2, 4}));
  EXPECT_EQ(graph->nodes().front()->op(), "Transpose");
}

TEST(FuseLinear, ProductOfActivationsStays) {
  const std::string text =
      "graph (float[batch,sequence,2] x, float[2,3] z) => (float[batch,sequence,3] y)\n"
      "{\n  y = MatMul(x, z)\n}\n";
  FuseLinear pass;
  ExpectPass(pass, text, text);
}

}  // namespace
}  // namespace weir
