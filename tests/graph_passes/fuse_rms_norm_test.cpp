#include "graph_passes/fuse_rms_norm.h"

#include "tests/graph_passes/golden.h"

namespace weir {
namespace {

std::string Graph(const std::string& body) {
  return "graph (float[batch,sequence,4] x, float[batch,sequence,4] s) => (float[batch,sequence,4] "
         "y)\n"
         "constant float[4] w = {1, 2, 3, 4}\n{\n" +
         body + "}\n";
}

std::string Fused(const std::string& body) {
  return "graph (float[batch,sequence,4] x, float[batch,sequence,4] s) => (float[batch,sequence,4] "
         "y)\n"
         "parameter float[4] w\n{\n" +
         body + "}\n";
}

const char* const kRoot =
    "  a = Mul(x, x)\n"
    "  m = ReduceMean(a, int64[1]{2})\n"
    "  e = Add(m, float[]{1e-06})\n"
    "  q = Sqrt(e)\n";

void Expect(const std::string& before, const std::string& after) {
  FuseRmsNorm pass;
  ExpectPass(pass, before, after);
}

TEST(FuseRmsNorm, TakesReciprocalAndWeightFirst) {
  Expect(Graph(kRoot + std::string("  r = Reciprocal(q)\n  n = Mul(x, r)\n  y = Mul(w, n)\n")),
         Fused("  y = RmsNorm<epsilon = 1e-06>(x, w)\n"));
}

TEST(FuseRmsNorm, TakesDivisionAndWeightLast) {
  Expect(Graph(kRoot + std::string("  n = Div(x, q)\n  y = Mul(n, w)\n")),
         Fused("  y = RmsNorm<epsilon = 1e-06>(x, w)\n"));
}

TEST(FuseRmsNorm, KeepsTheOffsetOfTheWeight) {
  Expect(Graph(kRoot + std::string("  n = Div(x, q)\n  g = Add(w, float[]{1})\n  y = Mul(n, g)\n")),
         Fused("  g = Add(w, float[]{1})\n  y = RmsNorm<epsilon = 1e-06>(x, g)\n"));
}

TEST(FuseRmsNorm, WithoutWeightUsesOnes) {
  Expect(Graph(kRoot + std::string("  y = Div(x, q)\n")),
         Fused("  y = RmsNorm<epsilon = 1e-06>(x, float[4]{1, 1, 1, 1})\n"));
}

TEST(FuseRmsNorm, TakesTheFilesOwnOperators) {
  Expect(Graph("  y = RMSNormalization<axis = -1, epsilon = 1e-06>(x, w)\n"),
         Fused("  y = RmsNorm<epsilon = 1e-06>(x, w)\n"));
  Expect(Graph("  n, \"\", \"\", h = com.microsoft::SkipSimplifiedLayerNormalization<epsilon = "
               "1e-06>(x, s, w)\n"
               "  y = Add(n, h)\n"),
         Fused("  h = Add(x, s)\n  n = RmsNorm<epsilon = 1e-06>(h, w)\n  y = Add(n, h)\n"));
}

TEST(FuseRmsNorm, LeavesOtherMeansAlone) {
  // Another tensor is normalised than was squared.
  const std::string other = Graph(kRoot + std::string("  n = Div(s, q)\n  y = Mul(n, w)\n"));
  Expect(other, other);
  // The mean runs over the sequence.
  const std::string axis = Graph(
      "  a = Mul(x, x)\n  m = ReduceMean(a, int64[1]{1})\n  e = Add(m, float[]{1e-06})\n  q = "
      "Sqrt(e)\n"
      "  n = Div(x, q)\n  y = Mul(n, w)\n");
  Expect(axis, axis);
}

}  // namespace
}  // namespace weir
