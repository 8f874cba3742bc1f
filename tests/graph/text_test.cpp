#include "graph/text.h"

#include <gtest/gtest.h>

#include <limits>

#include "graph/error.h"
#include "graph/op_schema.h"

namespace weir {
namespace {

constexpr const char* kNorms =
    "graph twice (float[batch,sequence,4] x) => (float[batch,sequence,4] y)\n"
    "parameter float[4] \"odd name\"\n"
    "constant float[4] gamma = {1, 0.1, -2.5, inf}\n"
    "{\n"
    "  /layer.0/norm::out, \"\" = RmsNorm<epsilon = 1e-05>(x, gamma)\n"
    "  y, rstd = RmsNorm<epsilon = 2.0>(/layer.0/norm::out, \"odd name\")\n"
    "}\n";

TEST(Text, PrintsExactlyWhatItRead) { EXPECT_EQ(ToText(*ParseText(kNorms)), kNorms); }

TEST(Text, ReadsValuesAndInfersShapes) {
  const auto graph = ParseText(kNorms);
  VerifyGraph(*graph);
  const Value* gamma = graph->FindValue("gamma");
  EXPECT_EQ(gamma->data->AsFloats()[1], 0.1f);
  EXPECT_EQ(gamma->data->AsFloats()[3], std::numeric_limits<float>::infinity());
  EXPECT_EQ(ToString(graph->FindValue("rstd")->shape), "[batch,sequence]");
  const Node& first = *graph->nodes().front();
  EXPECT_EQ(first.outputs[1], nullptr);
  EXPECT_EQ(first.attributes.Float("epsilon", 0), static_cast<double>(1e-5f));
  EXPECT_EQ(graph->FindValue("odd name")->parameter->original_rank, 1);
}

TEST(Text, KeepsPhasesRolesDTypesAndDims) {
  const std::string text =
      "graph \"\" (int64[] step, float[2*batch*sequence,?,3] x, bool u) => (float[2*batch*sequence,?,3] z)\n"
      "gradient float[3] w.grad\n"
      "state float[3] w.m\n"
      "constant int64[2] shape = {0, -1}\n"
      "constant float16[2] half = {0.5, -0.33325195}\n"
      "constant double[] third = {0.3333333333333333}\n"
      "constant bool[3] flags = {1, 0, 1}\n"
      "{\n"
      "  a = RmsNorm(x, w.grad)\n"
      "  phase backward\n"
      "  z = RmsNorm(a, w.m)\n"
      "}\n";
  const auto graph = ParseText(text);
  EXPECT_EQ(ToText(*graph), text);
  EXPECT_EQ(graph->FindValue("z")->producer->phase, Phase::kBackward);
  EXPECT_EQ(graph->FindValue("w.m")->role, Role::kOptimizerState);
  EXPECT_EQ(graph->FindValue("third")->data->AsDoubles()[0], 1.0 / 3);
  EXPECT_FALSE(graph->FindValue("u")->has_shape);
  EXPECT_EQ(graph->FindValue("shape")->content->at(1), Dim(-1));
}

TEST(Text, KeepsEveryKindOfAttribute) {
  const std::string text =
      "graph g (float[4] x, float[4] g) => (float[4] y)\n"
      "{\n"
      "  y = RmsNorm<a = -3, b = 0.1, c = \"say \\\"hi\\\"\\n\", d = [1, 2], e = [1.0, -inf], f = [\"p\"], "
      "g = floats [], h = int64[2] {4, 5}, i = [], j = strings []>(x, g)\n"
      "}\n";
  EXPECT_EQ(ToText(*ParseText(text)), text);
}

TEST(Text, LongConstantsPrintAHashThatDependsOnEveryByte) {
  Graph graph;
  std::vector<float> values(17, 1.0f);
  graph.AddConstant("a", TensorData::FromFloats({17}, values));
  values[16] = 2;
  graph.AddConstant("b", TensorData::FromFloats({17}, values));
  const std::string text = ToText(graph);
  const size_t first = text.find("{hash:"), second = text.find("{hash:", first + 1);
  ASSERT_NE(second, std::string::npos);
  EXPECT_NE(text.substr(first, 22), text.substr(second, 22));
  EXPECT_THROW(ParseText(text), Error);
}

TEST(Text, CanonicalTextForgetsNamesAndOrder) {
  const auto first = ParseText(
      "graph a (float[2,4] x) => (float[2,4] y) parameter float[4] p constant float[4] c = {1, 2, 3, 4}\n"
      "{ u = RmsNorm(x, p)  v = RmsNorm(u, c)  dead = RmsNorm(x, c)  y = RmsNorm(v, p) }");
  const auto second = ParseText(
      "graph b (float[2,4] x) => (float[2,4] y) constant float[4] k = {1, 2, 3, 4} parameter float[4] q\n"
      "constant float[4] k2 = {1, 2, 3, 4}\n"
      "{ zz = RmsNorm(x, q) other = RmsNorm(x, k2) r, \"\" = RmsNorm(zz, k) y = RmsNorm(r, q) }");
  for (const auto& [graph, name] : {std::pair(first.get(), "p"), std::pair(second.get(), "q")}) {
    graph->FindValue(name)->parameter->originals = {
        {.tensor = "model.norm.weight", .dims = {4}, .perm = {}, .offset = {}}};
  }
  const std::string expected =
      "graph (float[2,4] x) => (float[2,4] y)\n"
      "parameter float[4] model.norm.weight\n"
      "{\n"
      "  %0 = RmsNorm(x, model.norm.weight)\n"
      "  %1 = RmsNorm(%0, float[4]{1, 2, 3, 4})\n"
      "  y = RmsNorm(%1, model.norm.weight)\n"
      "}\n";
  EXPECT_EQ(CanonicalText(*first), expected);
  EXPECT_EQ(CanonicalText(*second), expected);
}

TEST(Text, CanonicalTextTellsSlicesOfOneTensorApart) {
  const auto graph = ParseText(
      "graph (float[2,4] x) => (float[2,4] y) parameter float[4] p parameter float[4] q\n"
      "{ u = RmsNorm(x, q)  y = RmsNorm(u, p) }");
  for (const char* name : {"p", "q"}) {
    graph->FindValue(name)->parameter->originals = {{.tensor = "w", .dims = {8}, .perm = {}, .offset = {}}};
  }
  EXPECT_NE(CanonicalText(*graph).find("y = RmsNorm(%0, w.2)"), std::string::npos);
}

void ExpectFailure(const std::string& text, const std::string& part) {
  try {
    ParseText(text);
    FAIL() << "accepted: " << text;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Text, ErrorsNameLineAndColumn) {
  ExpectFailure("graph g (float[4] x) => (float[4] y)\n{\n  y = RmsNorm(x, w)\n}",
                "line 3 column 18: the value is not defined before this use, got 'w'");
  ExpectFailure("graph g (flat[4] x) => () {}", "line 1 column 10: expected an element type");
  ExpectFailure("graph g (float[4] x) => (float[4] x)\nconstant int64[3] c = {1, 2}\n{}",
                "line 2 column 23: expected 3 values and found 2");
  ExpectFailure("graph g (float[4] x, float[3] g) => (float[4] y)\n{ y = RmsNorm(x, g) }", "line 2 column 3");
  ExpectFailure("graph g (float[4] x, float[4] g) => (float[5] y)\n{ y = RmsNorm(x, g) }",
                "the signature says float[5] but inference finds float[4]");
  ExpectFailure("graph g (float[4] x) => (float[4] y)\n{ y = RmsNrm(x, x) }", "nearest known op is RmsNorm");
  ExpectFailure("graph g (float[4] x) => (float[4] y) {", "got 'end of text'");
  ExpectFailure("graph g (float[4] x) => (float[4] x) { } }", "expected the end of the text");
  ExpectFailure("graph \"g (float[4] x)", "the string is not closed");
}

}  // namespace
}  // namespace weir
