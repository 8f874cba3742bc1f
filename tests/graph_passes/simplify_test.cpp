#include "graph_passes/simplify.h"

#include "graph_passes/canonical_shapes.h"
#include "tests/graph_passes/equivalence.h"
#include "tests/graph_passes/golden.h"

namespace weir {
namespace {

struct Case {
  const char* name;
  std::string before, after;
};

std::string Graph(const std::string& output, const std::string& body) {
  return "graph g (int64[batch,sequence] ids, float[batch,sequence,8] x) => (" + output +
         " y)\n{\n" + body + "}\n";
}

const std::string kSame = "float[batch,sequence,8]";

// Cleaned to the end, `before` reads like `after`.
TEST(Simplify, GivesEqualThingsOneSpelling) {
  const std::string id = "  y = Neg(x)\n";
  const Case cases[] = {
      {"identity", Graph(kSame, "  a = Identity(x)\n  b, c = Dropout(a)\n  y = Neg(b)\n"),
       Graph(kSame, id)},
      {"neutral",
       Graph(kSame,
             "  a = Mul(x, float[]{1})\n  b = Add(float[]{0}, a)\n  c = Div(b, float[]{1})\n  y = "
             "Neg(c)\n"),
       Graph(kSame, id)},
      {"split_without_axis", "graph g (float[4,6] x) => (float[2,6] y)\n{\n  a, b = Split<num_outputs = 2>(x)\n  y = Sub(a, b)\n}\n",
       "graph g (float[4,6] x) => (float[2,6] y)\n{\n  a, b = Split<axis = 0>(x, int64[2]{2, 2})\n  y = Sub(a, b)\n}\n"},
      {"casts", Graph(kSame, "  a = Cast<to = 1>(x)\n  b = CastLike(a, x)\n  y = Neg(b)\n"),
       Graph(kSame, id)},
      {"square", Graph(kSame, "  y = Pow(x, float[]{2})\n"), Graph(kSame, "  y = Mul(x, x)\n")},
      {"inverse_root", Graph(kSame, "  y = Pow(x, float[]{-0.5})\n"),
       Graph(kSame, "  a = Sqrt(x)\n  y = Reciprocal(a)\n")},
      {"one_over", Graph(kSame, "  y = Div(float[]{1}, x)\n"),
       Graph(kSame, "  y = Reciprocal(x)\n")},
      {"bounds", Graph(kSame, "  a = Max(x, float[]{-7})\n  y = Min(a, float[]{7})\n"),
       Graph(kSame, "  y = Clip(x, float[]{-7}, float[]{7})\n")},
      {"swish", Graph(kSame, "  y = Swish(x)\n"),
       Graph(kSame, "  a = Sigmoid(x)\n  y = Mul(x, a)\n")},
      {"gelu",
       Graph(kSame,
             "  a = Div(x, float[]{1.4142135})\n  b = Erf(a)\n  c = Add(b, float[]{1})\n"
             "  d = Mul(c, float[]{0.5})\n  y = Mul(x, d)\n"),
       Graph(kSame, "  y = Gelu(x)\n")},
      {"reshapes",
       Graph("float[batch,sequence,2,4]",
             "  s = Shape(x)\n  b = Slice(s, int64[1]{0}, int64[1]{2}, int64[1]{0})\n  t = "
             "Concat<axis = 0>(b, int64[2]{4, 2})\n"
             "  a = Reshape(x, t)\n  u = Unsqueeze(a, int64[1]{0})\n  v = Concat<axis = 0>(b, "
             "int64[2]{2, 4})\n"
             "  y = Reshape<allowzero = 1>(u, v)\n"),
       Graph("float[batch,sequence,2,4]", "  y = Reshape(x, int64[4]{0, 0, 2, 4})\n")},
      {"tile",
       Graph("float[3,batch,sequence,8]",
             "  a = Unsqueeze(x, int64[1]{0})\n  y = Tile(a, int64[4]{3, 1, 1, 1})\n"),
       Graph("float[3,batch,sequence,8]",
             "  s = Shape(ids)\n  t = Concat<axis = 0>(int64[1]{1}, s, int64[1]{8})\n"
             "  a = Reshape(x, t)\n  y = Expand(a, int64[4]{3, 1, 1, 1})\n")},
      {"transposes",
       Graph(kSame,
             "  a = Transpose<perm = [1, 2, 0]>(x)\n  b = Transpose<perm = [2, 0, 1]>(a)\n  y = "
             "Neg(b)\n"),
       Graph(kSame, id)},
      {"flat_transpose",
       Graph("float[batch,2,4,sequence]",
             "  z = Reshape(x, int64[4]{0, 0, 2, 4})\n  h = Transpose<perm = [0, 2, 1, 3]>(z)\n  s "
             "= Shape(h)\n"
             "  l = Slice(s, int64[1]{2}, int64[1]{4}, int64[1]{0})\n  m = Concat<axis = "
             "0>(int64[1]{-1}, l)\n"
             "  a = Reshape(h, m)\n  b = Transpose<perm = [0, 2, 1]>(a)\n"
             "  i = Slice(s, int64[1]{0}, int64[1]{2}, int64[1]{0})\n  j = Slice(s, int64[1]{2}, "
             "int64[1]{3}, int64[1]{0})\n"
             "  k = Slice(s, int64[1]{3}, int64[1]{4}, int64[1]{0})\n  o = Concat<axis = 0>(i, k, "
             "j)\n  y = Reshape(b, o)\n"),
       Graph("float[batch,2,4,sequence]",
             "  z = Reshape(x, int64[4]{0, 0, 2, 4})\n  y = Transpose<perm = [0, 2, 3, 1]>(z)\n")},
      {"slice_of_concat",
       Graph(kSame,
             "  a = Neg(x)\n  c = Concat<axis = -1>(x, a)\n  y = Slice(c, int64[1]{8}, "
             "int64[1]{99}, int64[1]{-1})\n"),
       Graph(kSame, id)},
      {"whole_slice",
       Graph(kSame,
             "  s = Shape<start = 1, end = 2>(x)\n  a = Slice(x, int64[1]{0}, s, int64[1]{1})\n  y "
             "= Neg(a)\n"),
       Graph(kSame, id)},
      {"slice_scatter",
       Graph(kSame,
             "  a = Neg(x)\n  l = Slice(a, int64[1]{0}, int64[1]{3}, int64[1]{2})\n  h = Slice(x, "
             "int64[1]{3}, int64[1]{8}, int64[1]{2})\n"
             "  s = Shape(x)\n  z = ConstantOfShape(s)\n  zt = Transpose<perm = [2, 0, 1]>(z)\n  "
             "lt = Transpose<perm = [2, 0, 1]>(l)\n"
             "  ht = Transpose<perm = [2, 0, 1]>(h)\n  o = ScatterND(zt, int64[3,1]{0, 1, 2}, lt)\n"
             "  p = ScatterND(o, int64[5,1]{3, 4, 5, 6, 7}, ht)\n  y = Transpose<perm = [1, 2, "
             "0]>(p)\n"),
       Graph(kSame,
             "  a = Neg(x)\n  l = Slice(a, int64[1]{0}, int64[1]{3}, int64[1]{2})\n"
             "  h = Slice(x, int64[1]{3}, int64[1]{8}, int64[1]{2})\n  y = Concat<axis = 2>(l, "
             "h)\n")},
      {"sequence",
       Graph("float[batch,sequence,3]",
             "  q = SplitToSequence<axis = -1>(x, int64[2]{3, 5})\n  y = SequenceAt(q, "
             "int64[]{0})\n"),
       Graph("float[batch,sequence,3]", "  y, r = Split<axis = 2>(x, int64[2]{3, 5})\n")},
      {"sinking",
       Graph("float[batch,sequence,8]",
             "  a = Transpose<perm = [0, 2, 1]>(x)\n  b = Neg(a)\n  c, d = Split<axis = 1, "
             "num_outputs = 2>(b)\n"
             "  e = Concat<axis = 1>(d, c)\n  f = Mul(e, float[]{3})\n  y = Transpose<perm = [0, "
             "2, 1]>(f)\n"),
       Graph("float[batch,sequence,8]",
             "  b = Neg(x)\n  c, d = Split<axis = 2>(b, int64[2]{4, 4})\n  e = Concat<axis = 2>(d, "
             "c)\n  y = Mul(e, float[]{3})\n")},
      {"common",
       Graph(kSame,
             "  a = Neg(x)\n  b = Neg(x)\n  c = Mul(float[]{2}, a)\n  d = Mul(b, float[]{2})\n  y "
             "= Add(d, c)\n"),
       Graph(kSame, "  a = Neg(x)\n  c = Mul(a, float[]{2})\n  y = Add(c, c)\n")},
  };
  for (const Case& item : cases) {
    SCOPED_TRACE(item.name);
    const auto original = ReadGolden(item.before), before = ReadGolden(item.before),
               after = ReadGolden(item.after);
    for (weir::Graph* graph : {before.get(), after.get()}) {
      CleanForTest(*graph, true);
      CanonicalShapes shapes;
      PassContext context;
      shapes.Run(*graph, context);
      CleanForTest(*graph, true);
      if (graph->FindValue("y") == nullptr) graph->Rename(graph->outputs[0], "y");
    }
    EXPECT_EQ(CanonicalText(*before), CanonicalText(*after));
    if (item.name != std::string("sequence"))
      ExpectEquivalent(*original, *before, 1e-7);  // cannot be evaluated
  }
}

TEST(Simplify, KeepsWhatChangesTheResult) {
  for (const std::string& body :
       {std::string("  t = Transpose<perm = [0, 2, 1]>(x)\n  w = Softmax<axis = 1>(t)\n"
                    "  y = Transpose<perm = [0, 2, 1]>(w)\n"),
        std::string("  y = Add(x, float[1,1,1,1]{0})\n"),  // raises the rank
        std::string("  y = Div(float[]{2}, x)\n"),         //
        std::string("  y = Slice(x, int64[1]{1}, int64[1]{99}, int64[1]{1})\n"),
        std::string("  a = Clip(x, float[]{2})\n  y = Clip(a, \"\", float[]{-2})\n")}) {
    SCOPED_TRACE(body);
    const std::string text = Graph(body.find("1,1,1,1") != body.npos ? "float[1,batch,sequence,8]"
                                   : body.find("Slice") != body.npos ? "float[batch,?,8]"
                                                                     : kSame,
                                   body);
    const auto before = ReadGolden(text), after = ReadGolden(text);
    CleanForTest(*after, true);
    EXPECT_EQ(after->nodes().size(), before->nodes().size());
    ExpectEquivalent(*before, *after, 0);
  }
}

}  // namespace
}  // namespace weir
