#include <gtest/gtest.h>

#include "graph/error.h"
#include "graph/parameter.h"
#include "graph/text.h"
#include "graph_passes/classify_parameters.h"
#include "graph_passes/flatten_router.h"
#include "graph_passes/match_names.h"
#include "graph_passes/parameters.h"
#include "graph_passes/tie_parameters.h"

namespace weir {
namespace {

// Constants of the text become initializers of the file.
std::unique_ptr<Graph> Parse(const std::string& text) {
  auto graph = ParseText(text);
  for (const auto& value : graph->values()) {
    if (value->role == Role::kConstant && IsFloat(value->dtype))
      graph->initializers[value->name] = value->data;
  }
  MarkInitializers(*graph);
  return graph;
}

template <class P>
PassContext RunPass(P pass, Graph& graph) {
  PassContext context;
  pass.Run(graph, context);
  VerifyGraph(graph);
  return context;
}

Role RoleOf(const Graph& graph, const std::string& name) { return graph.FindValue(name)->role; }

TEST(ClassifyParameters, TrainsWhatAGradientReaches) {
  const auto graph = Parse(
      "graph g (float[batch,3] x) => (float[batch,2] y)\n"
      "constant float[3] gain = {1, 2, 3}\n"
      "constant float[3] selection = {0, 0, 1}\n"
      "constant float[2] bias = {1, 1}\n"
      "constant float[] factor = {3}\n"
      "constant float[3,3] angles = {1, 2, 3, 4, 5, 6, 7, 8, 9}\n"
      "constant int64[1] two = {2}\n"
      "{\n"
      "  a = Mul(x, gain)\n  b = Mul(a, factor)\n  s = Add(b, selection)\n  \"\", ids = TopK<axis "
      "= 1>(s, two)\n"
      "  c = MatMul(b, angles)\n  d = Cos(c)\n  e = Mul(b, d)\n"
      "  f = GatherElements<axis = 1>(e, ids)\n  y = Add(f, bias)\n}\n");
  RunPass(ClassifyParameters(), *graph);
  EXPECT_EQ(RoleOf(*graph, "gain"), Role::kParameter);
  EXPECT_EQ(RoleOf(*graph, "bias"), Role::kParameter);
  EXPECT_EQ(RoleOf(*graph, "selection"), Role::kConstant);  // only picks entries
  EXPECT_EQ(RoleOf(*graph, "angles"), Role::kConstant);     // positions
  EXPECT_EQ(RoleOf(*graph, "factor"), Role::kConstant);
  const auto frozen = FrozenTensors(*graph);
  ASSERT_EQ(frozen.size(), 3u);
  EXPECT_EQ(frozen[0].value->name, "selection");
  EXPECT_EQ(frozen[0].reason, "no gradient reaches it");
}

const char* const kTied =
    "graph g (int64[batch,sequence] input_ids) => (float[batch,sequence,3] y)\n"
    "constant float[3,2] table = {1, 2, 3, 4, 5, 6}\n"
    "constant float[2,3] head = {1, 3, 5, 2, 4, 6}\n"
    "constant float[3,2] other = {1, 2, 3, 4, 5, 7}\n"
    "{\n  h = Embedding(input_ids, table)\n  y = Linear(h, table)\n}\n";

TEST(TieParameters, ATransposedCopyIsTheSameParameter) {
  const auto graph = Parse(kTied);
  Value* table = AsParameter(*graph, graph->FindValue("table"));
  Value* head = PermutedParameter(*graph, graph->FindValue("head"), {1, 0});
  Node* linear = graph->FindValue("y")->producer;
  graph->SetInput(linear, 1, head);
  EXPECT_EQ(RunPass(TieParameters(), *graph).matches, 1);
  EXPECT_EQ(linear->in(1), table);
  // Both of the file's tensors are written back.
  ASSERT_EQ(table->parameter->initializers.size(), 2u);
  EXPECT_EQ(table->parameter->initializers[1].tensor, "head");
  EXPECT_EQ(ExtractPiece(table->parameter->initializers[1], {3, 2}, LoadParameter(*graph, *table)),
            (std::vector<float>{1, 3, 5, 2, 4, 6}));
  EXPECT_EQ(graph->notices.size(), 1u);
}

TEST(TieParameters, DifferingMatricesStayApart) {
  const auto graph = Parse(kTied);
  AsParameter(*graph, graph->FindValue("table"));
  graph->SetInput(graph->FindValue("y")->producer, 1,
                  AsParameter(*graph, graph->FindValue("other")));
  EXPECT_EQ(RunPass(TieParameters(), *graph).matches, 0);
}

// A model made deeper by copies of its layers: two tensors of the file, trained apart.
TEST(TieParameters, LayersThatBeginEqualStayApart) {
  const auto graph = Parse(
      "graph g (float[batch,2] x) => (float[batch,2] y)\n"
      "constant float[2,2] a = {1, 2, 3, 4}\nconstant float[2,2] b = {1, 2, 3, 4}\n"
      "{\n  h = Linear(x, a)\n  y = Linear(h, b)\n}\n");
  for (const char* name : {"a", "b"}) AsParameter(*graph, graph->FindValue(name));
  EXPECT_EQ(RunPass(TieParameters(), *graph).matches, 0);
}

TEST(TieParameters, FreshConstantsAreEqualByChance) {
  const auto graph = Parse(
      "graph g (float[batch,2] x) => (float[batch,2] y)\n"
      "constant float[2,2] a = {0, 0, 0, 0}\nconstant float[2,2] b = {0, 0, 0, 0}\n"
      "constant float[2] p = {1, 2}\nconstant float[2] q = {1, 2}\n"
      "{\n  h = Linear(x, a, p)\n  y = Linear(h, b, q)\n}\n");
  for (const char* name : {"a", "b", "p", "q"}) AsParameter(*graph, graph->FindValue(name));
  EXPECT_EQ(RunPass(TieParameters(), *graph).matches, 0);
  const auto head = Parse(
      "graph g (int64[batch] ids) => (float[batch,3] y)\n"
      "constant float[3,2] table = {1, 1, 1, 1, 1, 1}\nconstant float[3,2] head = {1, 1, 1, 1, 1, 1}\n"
      "{\n  h = Embedding(ids, table)\n  y = Linear(h, head)\n}\n");
  for (const char* name : {"table", "head"}) AsParameter(*head, head->FindValue(name));
  EXPECT_EQ(RunPass(TieParameters(), *head).matches, 0);
}

TEST(MatchNames, EqualValuesAreToldApartByNameOrSaidToBeAmbiguous) {
  const auto graph = Parse(
      "graph g (float[batch,2] x) => (float[batch,2] y)\n"
      "constant float[2] first.weight = {1, 1}\nconstant float[2] second.weight = {1, 1}\n"
      "constant float[2] renamed = {2, 2}\nconstant float[2] renamed_too = {2, 2}\n"
      "{\n  a = Mul(x, first.weight)\n  b = Mul(a, second.weight)\n  c = Mul(b, renamed)\n  y = "
      "Mul(c, renamed_too)\n}\n");
  for (const char* name : {"first.weight", "second.weight", "renamed", "renamed_too"})
    AsParameter(*graph, graph->FindValue(name));
  const auto ones = TensorData::FromFloats({2}, {1, 1}), twos = TensorData::FromFloats({2}, {2, 2});
  const NamedTensors names = {
      {"first.weight", ones}, {"second.weight", ones}, {"p", twos}, {"q", twos}};
  RunPass(MatchNames(names), *graph);
  EXPECT_EQ(graph->FindValue("first.weight")->parameter->originals[0].tensor, "first.weight");
  EXPECT_EQ(graph->FindValue("second.weight")->parameter->originals[0].tensor, "second.weight");
  EXPECT_TRUE(graph->FindValue("renamed")->parameter->originals.empty());
  EXPECT_NE(graph->notices[0].find("equal several tensors"), std::string::npos);
  EXPECT_NE(graph->notices[1].find("match no parameter: p, q"), std::string::npos);
}

TEST(MatchNames, OneTensorPerExpertIsFoundInAStack) {
  const auto graph = Parse(
      "graph g (float[batch,2] x) => (float[batch,3] y)\n"
      "constant float[2,3,2] stack = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}\n"
      "constant int64[] zero = {0}\n"
      "{\n  w = Gather<axis = 0>(stack, zero)\n  t = Transpose<perm = [1, 0]>(w)\n  y = MatMul(x, "
      "t)\n}\n");
  AsParameter(*graph, graph->FindValue("stack"));
  const NamedTensors names = {{"e0", TensorData::FromFloats({3, 2}, {1, 2, 3, 4, 5, 6})},
                              {"e1", TensorData::FromFloats({2, 3}, {7, 9, 11, 8, 10, 12})}};
  RunPass(MatchNames(names), *graph);
  const Value* stack = graph->FindValue("e0");
  ASSERT_NE(stack, nullptr);
  ASSERT_EQ(stack->parameter->originals.size(), 2u);
  EXPECT_EQ(stack->parameter->originals[1].offset, (Dims{1, 0, 0}));
  EXPECT_EQ(stack->parameter->originals[1].perm, (std::vector<int64_t>{1, 0}));
  EXPECT_TRUE(graph->notices.empty());
}

// Two layers of eleven experts that all begin with the same values; "10" comes before "2" in the file.
TEST(MatchNames, EqualExpertsOfEqualLayersAreToldApartByTheirNumbers) {
  std::string stacks, reads;
  NamedTensors names;
  for (const std::string layer : {"0", "1"}) {
    const std::string name = "model.layers." + layer + ".mlp.experts.down_proj", at = std::string("h") + layer;
    stacks += "constant float[11,3,2] " + name + " = {1, 2, 3, 4, 5, 6";
    for (int e = 0; e < 11; ++e) {
      if (e > 0) stacks += ", 1, 2, 3, 4, 5, 6";
      names[StrCat("layers.", layer, ".moe.experts.", e, ".w2.weight")] = TensorData::FromFloats({3, 2}, {1, 2, 3, 4, 5, 6});
    }
    stacks += "}\n";
    reads += "  w" + layer + " = Gather<axis = 0>(" + name + ", zero)\n  t" + layer + " = Transpose<perm = [1, 0]>(w" + layer + ")\n  " + at + " = MatMul(x, t" + layer + ")\n";
  }
  const auto graph = Parse("graph g (float[batch,2] x) => (float[batch,3] y)\n" + stacks + "constant int64[] zero = {0}\n{\n" + reads + "  y = Add(h0, h1)\n}\n");
  std::vector<Value*> parameters;
  for (const char* layer : {"0", "1"}) parameters.push_back(AsParameter(*graph, graph->FindValue(StrCat("model.layers.", layer, ".mlp.experts.down_proj"))));
  RunPass(MatchNames(names), *graph);
  for (size_t layer = 0; layer < 2; ++layer) {
    const auto& originals = parameters[layer]->parameter->originals;
    ASSERT_EQ(originals.size(), 11u) << layer;
    for (size_t e = 0; e < 11; ++e) {
      EXPECT_EQ(originals[e].tensor, StrCat("layers.", layer, ".moe.experts.", e, ".w2.weight"));
      EXPECT_EQ(originals[e].offset[0], static_cast<int64_t>(e));
    }
  }
  EXPECT_TRUE(graph->notices.empty());
}

TEST(MatchNames, GlobsMatch) {
  EXPECT_TRUE(MatchesGlob("*.mlp.*", "model.layers.0.mlp.gate"));
  EXPECT_TRUE(MatchesGlob("a?c*", "abc"));
  EXPECT_FALSE(MatchesGlob("*.mlp", "model.mlp.gate"));
  EXPECT_FALSE(MatchesGlob("", "a"));
}

TEST(FlattenRouter, ScoresOnBatchesBecomeScoresOnRows) {
  const auto graph = Parse(
      "graph g (int64[batch,sequence] input_ids, float[batch,sequence,4] x) => "
      "(float[batch*sequence,4] y)\n"
      "parameter float[3,4] gate\nparameter float[3,4,4] gate_up\nparameter float[3,4,2] down\n"
      "constant int64[1] two = {2}\nconstant int64[1] last = {-1}\nconstant int64[2] rows = {-1, "
      "4}\nconstant int64[2] routes = {-1, 2}\n"
      "{\n"
      "  r = Reshape(x, rows)\n  l = Linear(x, gate)\n  p = Softmax<axis = 2>(l)\n  w, i = "
      "TopK<axis = 2>(p, two)\n"
      "  s = ReduceSum<keepdims = 1>(w, last)\n  n = Div(w, s)\n  wf = Reshape(n, routes)\n  ids = "
      "Reshape(i, routes)\n"
      "  y = Experts(r, ids, wf, gate_up, down)\n}\n");
  RunPass(FlattenRouter(), *graph);
  for (const auto& node : graph->nodes()) {
    EXPECT_TRUE(node->op() == "Reshape" || node->out(0)->shape.size() == 2) << node->op();
  }
  EXPECT_EQ(graph->FindValue("y")->producer->in(1)->producer->op(), "TopK");
}

}  // namespace
}  // namespace weir
