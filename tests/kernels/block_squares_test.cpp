// Squares of shards on ranks that are threads: the norm of the whole, to the bit where shards end at blocks.
#include <gtest/gtest.h>

#include <cmath>

#include "backend/cpu/thread_communicator.h"
#include "backend/plan.h"
#include "graph/layout.h"
#include "tests/kernels/run_op.h"

namespace weir {
namespace {

double WholeNorm(const std::vector<float>& values, const std::vector<float>& other) {
  const auto count = static_cast<int64_t>(values.size()), others = static_cast<int64_t>(other.size());
  Graph graph;
  Value *x = graph.AddInput("x", DType::kFloat32, {count}), *o = graph.AddInput("o", DType::kFloat32, {others}), *norm = graph.AddValue("norm");
  InferNode(*graph.AddNode(GetOp("GradientNorm", "ai.weir"), {o, x}, {norm}));
  graph.outputs = {norm};
  const Plan plan = MakePlan(graph, DeviceKind::kCpu);
  Executor executor(plan);
  executor.Write(*x, values.data(), count * 4);
  executor.Write(*o, other.data(), others * 4);
  executor.Run();
  double result = 0;
  executor.Read(*norm, &result, sizeof(result));
  return result;
}

// The norm of `other` and of shards of `values` of so many elements each.
std::vector<double> ShardNorms(const std::vector<float>& values, const std::vector<float>& other, const std::vector<int64_t>& elements) {
  std::vector<double> norms(elements.size());
  RunRanks(std::ssize(elements), [&](Communicator& world) {
    const auto rank = static_cast<size_t>(world.rank());
    world.SetLayout({.world = world.size(), .vocabulary_parallel = world.size()});
    int64_t first = 0;
    for (size_t r = 0; r < rank; ++r) first += elements[r];
    Graph graph;
    Value *x = graph.AddInput("x", DType::kFloat32, {elements[rank]}), *o = graph.AddInput("o", DType::kFloat32, {std::ssize(other)});
    Value *squares = graph.AddValue("squares"), *norm = graph.AddValue("norm");
    InferNode(*graph.AddNode(GetOp("BlockSquares", "ai.weir"), {x}, {squares}, {{"group", std::string("vocabulary")}, {"elements", elements}}));
    InferNode(*graph.AddNode(GetOp("GradientNorm", "ai.weir"), {o, squares}, {norm}));
    graph.outputs = {norm};
    const Plan plan = MakePlan(graph, DeviceKind::kCpu);
    Executor executor(plan, {.poison = true, .communicator = &world});
    executor.Write(*x, values.data() + first, elements[rank] * 4);
    executor.Write(*o, other.data(), std::ssize(other) * 4);
    executor.Run();
    executor.Read(*norm, &norms[rank], sizeof(double));
  });
  return norms;
}

TEST(BlockSquares, ShardsThatEndAtBlocksHaveTheBitsOfTheWhole) {
  const auto values = Normal({5 * 65536 + 777}, 1).f, other = Normal({70001}, 2).f;
  const double whole = WholeNorm(values, other);
  double square = 0;
  for (const auto* x : {&values, &other}) {
    for (const float v : *x) square += static_cast<double>(v) * static_cast<double>(v);
  }
  EXPECT_NEAR(whole, std::sqrt(square), 1e-12 * whole);
  for (const auto& elements : {std::vector<int64_t>{3 * 65536, 2 * 65536 + 777}, {2 * 65536, 2 * 65536, 65536, 777}, {5 * 65536 + 777, 0}}) {
    for (const double norm : ShardNorms(values, other, elements)) EXPECT_EQ(norm, whole);
  }
  for (const double norm : ShardNorms(values, other, {100000, 5 * 65536 + 777 - 100000})) EXPECT_NEAR(norm, whole, 1e-13 * whole);
}

TEST(BlockSquares, WrongUseIsRefused) {
  EXPECT_NE(ErrorOf([] { RunOp("BlockSquares", {Normal({5}, 1)}, 1, {{"elements", std::vector<int64_t>{3, 4}}}); }).find("C1: 5 elements"),
            std::string::npos);
  EXPECT_NE(ErrorOf([] { RunOp("BlockSquares", {Normal({3}, 1)}, 1, {{"elements", std::vector<int64_t>{3, 4}}}); }).find("2 shards runs on 1"),
            std::string::npos);
}

}  // namespace
}  // namespace weir
