#include "graph_passes/recognize_mask.h"

#include <gtest/gtest.h>

#include "graph/op_schema.h"
#include "graph/text.h"

namespace weir {
namespace {

// Query and key positions as columns and rows; `body` makes `m`.
std::unique_ptr<Graph> MaskGraph(const std::string& body) {
  auto graph = ParseText(
      "graph g (int64[batch,sequence] ids) => (int64[1] s)\n"
      "{\n  s = Shape<start = 1>(ids)\n  n = Squeeze(s)\n  r = Range(int64[]{0}, n, int64[]{1})\n"
      "  k = Unsqueeze(r, int64[1]{0})\n  q = Unsqueeze(r, int64[1]{1})\n" +
      body + "}\n");
  InferGraph(*graph);
  return graph;
}

std::string Form(const std::string& body, bool inverted = false) {
  const auto graph = MaskGraph(body);
  const LaunchConstants constants(*graph);
  std::string why;
  const auto mask = RecognizeMask(constants, {{graph->FindValue("m"), inverted}}, false, why);
  if (!mask) return why;
  return std::string(mask->causal ? "causal" : "all") +
         (mask->window ? " " + std::to_string(mask->window) : "");
}

const std::string kCausal = "  c = LessOrEqual(k, q)\n";

TEST(RecognizeMask, CausalInEveryKind) {
  EXPECT_EQ(Form("  m = LessOrEqual(k, q)\n"), "causal");
  EXPECT_EQ(Form("  m = Greater(k, q)\n", true), "causal");
  for (const char* least : {"-inf", "-3.4028235e+38", "-65504", "-10000"}) {
    EXPECT_EQ(Form(kCausal + "  m = Where(c, float[]{0}, float[]{" + least + "})\n"), "causal")
        << least;
  }
  EXPECT_EQ(Form(kCausal + "  b = Shape<end = 1>(ids)\n  t = Concat<axis = 0>(b, int64[1]{1}, s, "
                           "s)\n  m = Expand(c, t)\n"),
            "causal");
}

TEST(RecognizeMask, NothingMasked) {
  EXPECT_EQ(Form("  m = GreaterOrEqual(r, int64[]{0})\n"), "all");
}

// Windows below and above the probed lengths, and with an offset.
TEST(RecognizeMask, WindowOfEverySize) {
  for (const std::string window : {"1", "5", "8", "11", "12", "13", "128", "4096"}) {
    const std::string body =
        kCausal + "  w = Sub(q, int64[]{" + window + "})\n  g = Greater(k, w)\n  m = And(c, g)\n";
    EXPECT_EQ(Form(body), "causal " + window);
  }
  EXPECT_EQ(
      Form(kCausal + "  w = Sub(q, int64[]{100})\n  g = GreaterOrEqual(k, w)\n  m = And(c, g)\n"),
      "causal 101");
}

TEST(RecognizeMask, ConstantsThatDoNotMatterAreAllowed) {
  EXPECT_EQ(
      Form(kCausal + "  w = Less(k, int64[]{-5})\n  l = Add(q, int64[]{4096})\n  g = Less(l, k)\n"
                     "  e = Or(w, g)\n  o = Not(e)\n  m = And(c, o)\n"),
      "causal");
}

TEST(RecognizeMask, SaysWhyNot) {
  EXPECT_NE(Form("  m = Less(k, q)\n").find("neither causal"), std::string::npos);
  // Chunks of 64 tokens: causal as far as a short sequence can see.
  const std::string chunks =
      "  a = Div(k, int64[]{64})\n  b = Div(q, int64[]{64})\n  e = Equal(a, b)\n  m = And(c, e)\n";
  EXPECT_NE(Form(kCausal + chunks).find("constant 64"), std::string::npos)
      << Form(kCausal + chunks);
  EXPECT_NE(Form(kCausal + "  m = Where(c, float[]{0}, float[]{-1})\n").find("neither 0"),
            std::string::npos);
  // A prefix that everyone sees.
  EXPECT_NE(Form(kCausal + "  p = Less(k, int64[]{3})\n  m = Or(c, p)\n").find("neither causal"),
            std::string::npos);
  // The mask reads the tokens.
  EXPECT_NE(Form("  t = Unsqueeze(ids, int64[1]{1})\n  z = Equal(t, int64[]{0})\n  m = Not(z)\n")
                .find("launch shape"),
            std::string::npos);
}

}  // namespace
}  // namespace weir
