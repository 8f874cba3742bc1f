#include "graph/graph.h"

#include <gtest/gtest.h>

#include <chrono>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph/text.h"

namespace weir {
namespace {

std::unique_ptr<Graph> Chain() {
  return ParseText(
      "graph (float[2,4] x) => (float[2,4] y)\nparameter float[4] g\nconstant float[4] c = {1, 1, 1, 1}\n"
      "{ a = RmsNorm(x, g) b = RmsNorm(a, c) y = RmsNorm(b, g) }");
}
Node* Maker(const Graph& graph, const char* name) { return graph.FindValue(name)->producer; }

TEST(Graph, MakesNamesUnique) {
  Graph graph;
  EXPECT_EQ(graph.AddValue("v")->name, "v");
  EXPECT_EQ(graph.AddValue("v")->name, "v.2");
  EXPECT_EQ(graph.AddValue("v.2")->name, "v.2.2");
  EXPECT_EQ(graph.AddValue("v")->name, "v.3");
  EXPECT_THROW(graph.Rename(graph.FindValue("v"), "v.3"), Error);
  graph.Rename(graph.FindValue("v"), "w");
  EXPECT_EQ(graph.FindValue("v"), nullptr);
  EXPECT_EQ(graph.FindValue("w")->name, "w");
}

TEST(Graph, TracksUsesThroughEdits) {
  const auto graph = Chain();
  Value *g = graph->FindValue("g"), *c = graph->FindValue("c"), *x = graph->FindValue("x");
  EXPECT_EQ(g->uses.size(), 2u);
  graph->SetInput(Maker(*graph, "y"), 1, c);
  EXPECT_EQ(g->uses.size(), 1u);
  EXPECT_EQ(c->uses.size(), 2u);
  graph->ReplaceUses(graph->FindValue("a"), x);
  EXPECT_EQ(Maker(*graph, "b")->in(0), x);
  EXPECT_TRUE(graph->FindValue("a")->uses.empty());
  VerifyGraph(*graph);
}

TEST(Graph, ReplacingAnOutputChangesTheSignature) {
  const auto graph = Chain();
  graph->ReplaceUses(graph->FindValue("y"), graph->FindValue("a"));
  EXPECT_EQ(graph->outputs[0]->name, "a");
  EXPECT_EQ(graph->RemoveDeadNodes(), 2);
  EXPECT_EQ(ToText(*graph),
            "graph \"\" (float[2,4] x) => (float[2,4] a)\nparameter float[4] g\n{\n  a = RmsNorm(x, g)\n}\n");
  VerifyGraph(*graph);
}

TEST(Graph, DeadNodesGoWholeChainsAtOnceAndLeavesOnRequest) {
  const auto graph = Chain();
  graph->outputs = {graph->FindValue("x")};
  EXPECT_EQ(graph->RemoveDeadNodes(/*drop_values=*/false), 3);
  EXPECT_NE(graph->FindValue("g"), nullptr);
  EXPECT_EQ(graph->FindValue("a"), nullptr);
  EXPECT_EQ(graph->RemoveDeadNodes(), 0);
  EXPECT_EQ(graph->FindValue("g"), nullptr);
  EXPECT_NE(graph->FindValue("x"), nullptr);  // the signature stays
}

TEST(Graph, RefusesToRemoveWhatIsUsed) {
  const auto graph = Chain();
  EXPECT_THROW(graph->RemoveValue(graph->FindValue("g")), Error);
  EXPECT_THROW(graph->RemoveValue(graph->FindValue("a")), Error);
  EXPECT_THROW(graph->AddNode(GetOp("RmsNorm"), {}, {graph->FindValue("a")}), Error);
}

TEST(Graph, SortsStablyAndFindsCycles) {
  const auto graph = Chain();
  const std::string before = ToText(*graph);
  graph->MoveBefore(Maker(*graph, "y"), Maker(*graph, "a"));
  EXPECT_THROW(VerifyGraph(*graph), Error);
  graph->SortTopologically();
  EXPECT_EQ(ToText(*graph), before);
  graph->SetInput(Maker(*graph, "a"), 0, graph->FindValue("b"));
  try {
    graph->SortTopologically();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidModel);
    EXPECT_NE(error.message().find("cycle"), std::string::npos);
  }
}

TEST(Graph, ClonesAreEqualAndIndependent) {
  const auto graph = Chain();
  const auto copy = Clone(*graph);
  EXPECT_EQ(ToText(*copy), ToText(*graph));
  VerifyGraph(*copy);
  copy->SetInput(Maker(*copy, "y"), 1, copy->FindValue("c"));
  copy->FindValue("g")->parameter->original_rank = 9;
  EXPECT_NE(ToText(*copy), ToText(*graph));
  EXPECT_EQ(graph->FindValue("g")->parameter->original_rank, 1);
}

void ExpectBroken(const Graph& graph, const std::string& part) {
  try {
    VerifyGraph(graph);
    FAIL() << "accepted, expected: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
  }
}

TEST(VerifyGraph, FindsEveryBrokenInvariant) {
  {
    const auto graph = Chain();
    Maker(*graph, "b")->inputs[0] = graph->FindValue("x");
    ExpectBroken(*graph, "use list of 'a' is stale");
  }
  {
    const auto graph = Chain();
    graph->FindValue("x")->uses.clear();
    ExpectBroken(*graph, "'x' does not know this use");
  }
  {
    const auto graph = Chain();
    graph->FindValue("a")->role = Role::kParameter;
    ExpectBroken(*graph, "leaf 'a' is produced");
  }
  {
    const auto graph = Chain();
    graph->FindValue("b")->producer = Maker(*graph, "a");
    ExpectBroken(*graph, "'b' has another producer");
  }
  {
    const auto graph = Chain();
    graph->outputs.push_back(graph->AddValue("never"));
    ExpectBroken(*graph, "graph output 'never' is not made");
  }
  {
    const auto graph = Chain(), other = Chain();
    graph->SetInput(Maker(*graph, "a"), 0, other->FindValue("x"));
    ExpectBroken(*graph, "not owned");
    graph->SetInput(Maker(*graph, "a"), 0, graph->FindValue("x"));
  }
  {
    const auto graph = Chain();
    graph->FindValue("x")->uses.push_back(graph->FindValue("x")->uses[0]);
    ExpectBroken(*graph, "'x' knows one use twice");
  }
}

// 200,000 nodes on one value: quadratic work would take minutes.
TEST(VerifyGraph, TakesTimeLinearInTheUsesOfOneValue) {
  Graph graph;
  Value* x = graph.AddInput("x", DType::kFloat32, {2});
  for (int i = 0; i < 200000; ++i) graph.AddNode(GetOp("Neg"), {x}, {graph.AddValue("y" + std::to_string(i))});
  graph.outputs = {graph.FindValue("y0")};
  const auto start = std::chrono::steady_clock::now();
  VerifyGraph(graph);
  EXPECT_EQ(graph.RemoveDeadNodes(), 199999);
  VerifyGraph(graph);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(Schema, UnknownOpsNameTheNearest) {
  try {
    GetOp("RmsNrom");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupportedOp);
    EXPECT_NE(error.message().find("nearest known op is RmsNorm"), std::string::npos) << error.message();
  }
  EXPECT_EQ(FindOp("RmsNorm", "ai.onnx"), FindOp("RmsNorm", "ai.weir"));
  EXPECT_EQ(FindOp("RmsNorm", "com.microsoft"), nullptr);
}

TEST(Schema, ArityIsCheckedAtTheNode) {
  EXPECT_THROW(ParseText("graph (float[4] x) => (float[4] y)\n{ y = RmsNorm(x) }"), Error);
  EXPECT_THROW(ParseText("graph (float[4] x) => (float[4] y)\n{ y, a, b = RmsNorm(x, x) }"), Error);
}

TEST(Attributes, WrongTypesAreNamed) {
  const Attributes attributes{{"axis", int64_t{2}}, {"scale", 0.5}};
  EXPECT_EQ(attributes.Int("axis", 0), 2);
  EXPECT_EQ(attributes.Int("absent", 7), 7);
  EXPECT_THROW(attributes.Float("axis", 0), Error);
  EXPECT_THROW(attributes.Int("absent"), Error);
  EXPECT_TRUE(Equal(attributes, Attributes{{"scale", 0.5}, {"axis", int64_t{2}}}));
  EXPECT_FALSE(Equal(attributes, Attributes{{"axis", int64_t{2}}}));
  const Attribute a = TensorData::FromInts({1}, {3}), b = TensorData::FromInts({1}, {3}), c = TensorData::FromInts({1}, {4});
  EXPECT_TRUE(Equal(a, b));
  EXPECT_FALSE(Equal(a, c));
}

TEST(Error, RendersContextOutwards) {
  Error error(ErrorCode::kIoError, "disk is gone");
  error.AddContext("reading weights").AddContext("importing model.onnx");
  EXPECT_STREQ(error.what(), "IoError: disk is gone\n  while reading weights\n  while importing model.onnx");
}

}  // namespace
}  // namespace weir
