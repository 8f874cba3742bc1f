// Each spelling of rotary embedding that exporters write becomes one Rotary of the same function.
#include "graph_passes/fuse_rotary.h"

#include "tests/graph_passes/equivalence.h"
#include "tests/graph_passes/golden.h"

namespace weir {
namespace {

// Angles [S, 4] of positions 0 .. S-1.
const std::string kAngles =
    "  s = Shape<start = 1>(ids)\n  n = Squeeze(s)\n"
    "  r = Range(int64[]{0}, n, int64[]{1})\n  p = Cast<to = 1>(r)\n  u = Unsqueeze(p, "
    "int64[1]{1})\n"
    "  a = Mul(u, float[4]{1, 0.31622776, 0.1, 0.03162278})\n";

std::string Graph4(const std::string& body, const std::string& x = "float[batch,2,sequence,8] x") {
  return "graph g (int64[batch,sequence] ids, " + x + ") => (float[batch,2,sequence,8] y)\n{\n" +
         kAngles + body + "}\n";
}

const std::string kFullTables = "  f = Concat<axis = -1>(a, a)\n  c = Cos(f)\n  t = Sin(f)\n";
const std::string kHalves =
    "  x1 = Slice(x, int64[1]{0}, int64[1]{4}, int64[1]{-1})\n"
    "  x2 = Slice(x, int64[1]{4}, int64[1]{9223372036854775807}, int64[1]{-1})\n";
const std::string kEvenOdd =
    "  x1 = Slice(x, int64[1]{0}, int64[1]{8}, int64[1]{-1}, int64[1]{2})\n"
    "  x2 = Slice(x, int64[1]{1}, int64[1]{8}, int64[1]{-1}, int64[1]{2})\n";
const std::string kRotateHalf =
    "  m = Neg(x2)\n  h = Concat<axis = -1>(m, x1)\n  l = Mul(x, c)\n  q = Mul(h, t)\n  y = Add(l, "
    "q)\n";
const std::string kTerms =
    "  c1 = Mul(x1, c)\n  s2 = Mul(x2, t)\n  d = Sub(c1, s2)\n"
    "  c2 = Mul(x2, c)\n  s1 = Mul(x1, t)\n  e = Add(s1, c2)\n";

struct Spelling {
  const char* name;
  std::string text;
  int64_t input_interleaved, output_interleaved;
};

std::vector<Spelling> Spellings() {
  const std::string tables = "  c = Cos(a)\n  t = Sin(a)\n";
  return {
      {"rotate_half", Graph4(kFullTables + kHalves + kRotateHalf), 0, 0},
      {"rotate_half_split",
       Graph4(kFullTables + "  x1, x2 = Split<axis = 3, num_outputs = 2>(x)\n" + kRotateHalf), 0,
       0},
      {"scaled_halves",
       Graph4("  c0 = Cos(a)\n  c = Mul(c0, float[]{1.25})\n  t0 = Sin(a)\n  t = Mul(t0, "
              "float[]{1.25})\n" +
              kHalves + kTerms + "  y = Concat<axis = -1>(d, e)\n"),
       0, 0},
      {"even_odd_to_halves", Graph4(tables + kEvenOdd + kTerms + "  y = Concat<axis = -1>(d, e)\n"),
       1, 0},
      {"even_odd_to_even_odd",
       Graph4(tables + kEvenOdd + kTerms +
              "  d1 = Unsqueeze(d, int64[1]{-1})\n  e1 = Unsqueeze(e, int64[1]{-1})\n"
              "  k = Concat<axis = -1>(d1, e1)\n  v = Shape(x)\n  y = Reshape(k, v)\n"),
       1, 1},
      {"interleaved_tables",
       Graph4(
           "  u2 = Unsqueeze(a, int64[1]{2})\n  w = Expand(u2, int64[3]{1, 1, 2})\n"
           "  f = Reshape(w, int64[2]{-1, 8})\n  c = Cos(f)\n  t = Sin(f)\n" +
           kEvenOdd +
           "  m = Neg(x2)\n  m1 = Unsqueeze(m, int64[1]{-1})\n  o1 = Unsqueeze(x1, int64[1]{-1})\n"
           "  k = Concat<axis = -1>(m1, o1)\n  v = Shape(x)\n  h = Reshape(k, v)\n"
           "  l = Mul(x, c)\n  q = Mul(h, t)\n  y = Add(l, q)\n"),
       1, 1},
      {"pairs_by_index",
       Graph4(tables +
              "  b = Shape<end = 3>(x)\n  g = Concat<axis = 0>(b, int64[2]{4, 2})\n  z = "
              "Reshape(x, g)\n"
              "  z1, z2 = Split<axis = -1, num_outputs = 2>(z)\n"
              "  x1 = Squeeze(z1, int64[1]{-1})\n  x2 = Squeeze(z2, int64[1]{-1})\n" +
              kTerms + "  y = Concat<axis = -1>(d, e)\n"),
       1, 0},
      {"deinterleaved_first",
       "graph g (int64[batch,sequence] ids, float[batch,2,sequence,8] x0) => "
       "(float[batch,2,sequence,8] y)\n{\n" +
           kAngles + kFullTables +
           "  b = Shape<end = 3>(x0)\n  g = Concat<axis = 0>(b, int64[2]{4, 2})\n  z = Reshape(x0, "
           "g)\n"
           "  w = Transpose<perm = [0, 1, 2, 4, 3]>(z)\n  v = Shape(x0)\n  x = Reshape(w, v)\n" +
           kHalves + kRotateHalf + "}\n",
       1, 0},
      {"operator",
       Graph4("  a3 = Unsqueeze(a, int64[1]{0})\n  b = Shape<end = 1>(ids)\n  o = Concat<axis = "
              "0>(b, int64[2]{1, 1})\n"
              "  w = Expand(a3, o)\n  c = Cos(w)\n  t = Sin(w)\n"
              "  y = RotaryEmbedding<interleaved = 0>(x, c, t)\n"),
       0, 0},
  };
}

TEST(FuseRotary, TakesEverySpelling) {
  for (const Spelling& spelling : Spellings()) {
    SCOPED_TRACE(spelling.name);
    const auto before = ParseText(spelling.text), after = ParseText(spelling.text);
    CleanForTest(*after, false);
    FuseRotary pass;
    PassContext context;
    EXPECT_TRUE(pass.Run(*after, context)) << ToText(*after);
    CleanForTest(*after, true);
    const std::string text = CanonicalText(*after);
    const Node* rotary = nullptr;
    for (const auto& node : after->nodes()) {
      if (node->op() == "Rotary") rotary = node.get();
    }
    ASSERT_NE(rotary, nullptr) << text;
    EXPECT_EQ(rotary->attributes.Int("input_interleaved", 0), spelling.input_interleaved) << text;
    EXPECT_EQ(rotary->attributes.Int("output_interleaved", 0), spelling.output_interleaved) << text;
    EXPECT_EQ(text.find("Cos"), text.npos) << text;
    // The table rounds its angles to float32, the spelled-out double evaluation does not.
    ExpectEquivalent(*before, *after, 2e-6);
  }
}

TEST(FuseRotary, PartialRotationCopiesTheRest) {
  const std::string text =
      "graph g (int64[batch,sequence] ids, float[batch,sequence,2,12] z0) => "
      "(float[batch,2,sequence,12] o)\n{\n" +
      kAngles + kFullTables +
      "  z = Transpose<perm = [0, 2, 1, 3]>(z0)\n"
      "  x = Slice(z, int64[1]{0}, int64[1]{8}, int64[1]{-1})\n"
      "  i = Slice(z, int64[1]{8}, int64[1]{12}, int64[1]{-1})\n" +
      kHalves + kRotateHalf + "  o = Concat<axis = -1>(y, i)\n}\n";
  const auto before = ParseText(text), after = ParseText(text);
  CleanForTest(*after, false);
  FuseRotary pass;
  PassContext context;
  EXPECT_TRUE(pass.Run(*after, context));
  CleanForTest(*after, true);
  EXPECT_EQ(CanonicalText(*after).find("Concat"), std::string::npos) << CanonicalText(*after);
  ExpectEquivalent(*before, *after, 2e-6);
}

// What is nearly a rotary embedding stays as it is, with a reason.
TEST(FuseRotary, ReportsNearMisses) {
  const std::string swapped = "  c = Sin(a)\n  t = Cos(a)\n";
  const std::string offset = "  a9 = Add(a, float[]{0.5})\n  c = Cos(a9)\n  t = Sin(a9)\n";
  const std::string unequal = "  c = Cos(a)\n  t0 = Sin(a)\n  t = Mul(t0, float[]{2})\n";
  // Angles that change once the sequence is longer than 4096.
  const std::string dynamic =
      "  big = Greater(n, int64[]{4096})\n  k = Where(big, float[]{0.5}, float[]{1})\n  a9 = "
      "Mul(a, k)\n"
      "  c = Cos(a9)\n  t = Sin(a9)\n";
  for (const std::string& tables : {swapped, offset, unequal, dynamic}) {
    SCOPED_TRACE(tables);
    const auto graph =
        ParseText(Graph4(tables + kHalves + kTerms + "  y = Concat<axis = -1>(d, e)\n"));
    CleanForTest(*graph, false);
    FuseRotary pass;
    PassContext context;
    EXPECT_FALSE(pass.Run(*graph, context));
    ASSERT_EQ(context.misses.size(), 1u);
    EXPECT_NE(context.misses[0].find("Concat"), std::string::npos) << context.misses[0];
  }
}

}  // namespace
}  // namespace weir
