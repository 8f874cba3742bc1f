#include "graph_passes/parameters.h"

#include <gtest/gtest.h>

#include "graph/error.h"
#include "graph/parameter.h"

namespace weir {
namespace {

Value* AddWeight(Graph& graph, const std::string& name) {
  TensorDataPtr data = TensorData::FromFloats({2, 3}, {1, 2, 3, 4, 5, 6});
  graph.initializers[name] = data;
  return graph.AddConstant(name, data);
}

TEST(Parameters, AsParameterKeepsTheValueAndItsFileLayout) {
  Graph graph;
  Value* w = AddWeight(graph, "w");
  MarkInitializers(graph);
  EXPECT_TRUE(IsInitializer(w));
  EXPECT_EQ(AsParameter(graph, w), w);
  EXPECT_EQ(w->role, Role::kParameter);
  EXPECT_FALSE(IsInitializer(w));
  EXPECT_EQ(AsParameter(graph, w), w);
  EXPECT_EQ(LoadParameter(graph, *w), (std::vector<float>{1, 2, 3, 4, 5, 6}));
}

TEST(Parameters, PermutedParameterIsMadeOnceAndReadsTransposed) {
  Graph graph;
  Value* w = AddWeight(graph, "w");
  Value* t = PermutedParameter(graph, w, {1, 0});
  EXPECT_EQ(t, PermutedParameter(graph, w, {1, 0}));
  EXPECT_EQ(ToDims(t->shape), (Dims{3, 2}));
  EXPECT_EQ(LoadParameter(graph, *t), (std::vector<float>{1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(PermutedParameter(graph, w, {1, 0})->parameter->initializers[0].tensor, "w");
}

// A tensor that is read in two layouts is still trained once: the second is a view of the first.
TEST(Parameters, SecondLayoutIsAView) {
  Graph graph;
  Value* w = AddWeight(graph, "w");
  Value* t = PermutedParameter(graph, w, {1, 0});
  Value* plain = AsParameter(graph, w);
  EXPECT_NE(plain, w);
  ASSERT_NE(plain->producer, nullptr);
  EXPECT_EQ(plain->producer->op(), "Transpose");
  EXPECT_EQ(plain->producer->in(0), t);
  EXPECT_EQ(ToDims(plain->shape), (Dims{2, 3}));
  EXPECT_EQ(graph.ValuesWithRole(Role::kParameter).size(), 1u);
}

TEST(Parameters, SqueezedParameterDropsUnitAxes) {
  Graph graph;
  TensorDataPtr data = TensorData::FromFloats({1, 3, 1, 1}, {1, 2, 3});
  graph.initializers["sinks"] = data;
  Value* sinks = graph.AddConstant("sinks", data);
  Value* squeezed = SqueezedParameter(graph, sinks);
  EXPECT_EQ(squeezed, SqueezedParameter(graph, sinks));
  EXPECT_EQ(ToDims(squeezed->shape), (Dims{3}));
  EXPECT_EQ(LoadParameter(graph, *squeezed), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(AsParameter(graph, sinks)->producer->op(), "Reshape");
}

TEST(Parameters, FileDtypeSurvivesInThePiece) {
  Graph graph;
  Value* w = graph.AddConstant(
      "w", TensorData::Owned(DType::kBFloat16, {2},
                             EncodeFloats(std::vector<float>{1, 2}, DType::kBFloat16)));
  graph.initializers["w"] = w->data;
  MarkInitializers(graph);
  w->dtype = DType::kFloat32;
  EXPECT_EQ(AsParameter(graph, w)->parameter->initializers[0].dtype, DType::kBFloat16);
}

TEST(Parameters, IntegerConstantIsRefused) {
  Graph graph;
  Value* ids = graph.AddConstant("ids", TensorData::FromInts({1}, {3}));
  EXPECT_THROW(AsParameter(graph, ids), Error);
}

}  // namespace
}  // namespace weir
