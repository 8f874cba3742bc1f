// Elementwise ops beyond the conformance cases: integers, NaN, contents of shapes, threads, wrong
// use.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "graph/builder.h"
#include "kernels/elementwise/gradients.h"
#include "kernels/elementwise/infer.h"
#include "tests/kernels/run_op.h"

namespace weir {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Array<float> Typed(DType dtype, std::vector<int64_t> values) {
  const auto count = static_cast<int64_t>(values.size());
  Array<float> array = Ints({count}, std::move(values));
  array.dtype = dtype;
  return array;
}

TEST(Elementwise, IntegerDivisionTruncatesTowardsZero) {
  EXPECT_EQ(RunOp("Div", {Ints({4}, {-7, 7, -6, 5}), Ints({}, {2})})[0].i,
            (std::vector<int64_t>{-3, 3, -3, 2}));
}

TEST(Elementwise, IntegersWrapAtTheirWidth) {
  const auto sum = RunOp("Add", {Typed(DType::kInt32, {2147483647}), Typed(DType::kInt32, {1})});
  EXPECT_EQ(sum[0].i[0], -2147483648LL);
  EXPECT_EQ(RunOp("Sub", {Typed(DType::kUInt8, {3}), Typed(DType::kUInt8, {5})})[0].i[0], 254);
  const int64_t lowest = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(RunOp("Neg", {Ints({1}, {lowest})})[0].i[0], lowest);
  EXPECT_EQ(RunOp("Div", {Ints({1}, {lowest}), Ints({1}, {-1})})[0].i[0], lowest);
  EXPECT_EQ(RunOp("Mod", {Ints({1}, {lowest}), Ints({1}, {-1})})[0].i[0], 0);
}

TEST(Elementwise, DivisionOfIntegersByZeroIsAnError) {
  for (const char* op : {"Div", "Mod"}) {
    const std::string error = ErrorOf([&] { RunOp(op, {Ints({1}, {5}), Ints({1}, {0})}); });
    EXPECT_NE(error.find("by zero"), std::string::npos) << op << ": " << error;
  }
}

TEST(Elementwise, MinAndMaxKeepNan) {
  for (const char* op : {"Min", "Max"}) {
    const auto y =
        RunOp(op, {Floats({3}, {kNan, 1, 2}), Floats({3}, {1, kNan, 2}), Floats({}, {2})});
    EXPECT_TRUE(std::isnan(y[0].f[0]) && std::isnan(y[0].f[1])) << op;
    EXPECT_EQ(y[0].f[2], 2) << op;
  }
}

TEST(Elementwise, WrongUseIsAnErrorThatSaysWhat) {
  const auto error = [](std::string_view op, const Inputs& inputs) {
    return ErrorOf([&] { RunOp(op, inputs); });
  };
  EXPECT_NE(error("Add", {Normal({2, 3}, 1), Normal({2}, 1)}).find("does not broadcast"),
            std::string::npos);
  EXPECT_NE(error("Mul", {Normal({2}, 1), Ints({2}, {1, 2})}).find("insert a Cast"),
            std::string::npos);
  EXPECT_NE(error("Where", {Ints({1}, {1}), Normal({1}, 1), Normal({1}, 2)}).find("expected bool"),
            std::string::npos);
  EXPECT_NE(error("And", {Ints({1}, {1}), Ints({1}, {1})}).find("expected bool"),
            std::string::npos);
  EXPECT_NE(error("Clip", {Normal({3}, 1), Normal({3}, 1)}).find("expected a scalar"),
            std::string::npos);
  EXPECT_NE(error("Exp", {Ints({1}, {1})}).find("floats expected"), std::string::npos);
  EXPECT_NE(error("Mod", {Normal({1}, 1), Ints({1}, {2})}).find("insert a Cast"),
            std::string::npos);
  EXPECT_NE(error("Add", {Normal({1}, 1)}).find("inputs"), std::string::npos);
  EXPECT_NE(ErrorOf([] {
              RunOp("Gelu", {Normal({2}, 1)}, 1, {{"approximate", std::string("fast")}});
            }).find("'fast'"),
            std::string::npos);
}

TEST(Elementwise, SameBitsOnAnyThreads) {
  const Array<float> x = Normal({301, 257}, 1, 3), row = Normal({257}, 2),
                     column = Normal({301, 1}, 3);
  ExpectSameBitsOnAnyThreads("Add", {x, row}, 1);
  ExpectSameBitsOnAnyThreads("Div", {x, column}, 1);
  ExpectSameBitsOnAnyThreads("Max", {x, row, column}, 1);
  ExpectSameBitsOnAnyThreads("Sigmoid", {x}, 1);
  ExpectSameBitsOnAnyThreads("Gelu", {x}, 1, {{"approximate", std::string("tanh")}});
  ExpectSameBitsOnAnyThreads("UnaryGradient", {x, x}, 1, {{"function", std::string("Swish")}});
}

TEST(Elementwise, OrderOfDimsHoldsForEveryLaunch) {
  const Dim batch = Dim::Batch(), sequence = Dim::Sequence();
  EXPECT_EQ(Compare(batch * 3, batch), 1);
  EXPECT_EQ(Compare(sequence, -1), 1);
  EXPECT_EQ(Compare(0, batch * sequence), -1);
  EXPECT_EQ(Compare(batch, batch), 0);
  EXPECT_EQ(Compare(batch, 1), std::nullopt);  // equal at batch 1
  EXPECT_EQ(Compare(batch, sequence), std::nullopt);
  EXPECT_EQ(Compare(Dim::Unknown(), 1), std::nullopt);
}

TEST(Elementwise, ContentOfShapesStaysSymbolic) {
  Graph graph;
  Builder b(graph);
  Value* shape = graph.AddInput("shape", DType::kInt64, {3});
  shape->content = std::vector<Dim>{Dim::Batch(), Dim::Sequence(), 64};
  // torch writes Where(shape == -1, 1, shape) before every Expand.
  Value* chosen = b.Op("Where", {b.Op("Equal", {shape, b.Int(-1)}), b.Int(1), shape});
  EXPECT_EQ(ToString(*chosen->content), "[batch,sequence,64]");
  Value* scaled = b.Op("Div", {b.Op("Mul", {shape, b.Ints({2, 2, 2})}), b.Int(2)});
  EXPECT_EQ(ToString(*scaled->content), "[batch,sequence,64]");
  EXPECT_EQ(ToString(*b.Op("ReduceProd", {shape})->content), "[64*batch*sequence]");
  EXPECT_EQ(ToString(*b.Op("Max", {shape, b.Int(1)})->content), "[?,?,64]");
  EXPECT_EQ(ToString(*b.Op("Add", {shape, b.Int(1)})->content), "[?,?,65]");
}

TEST(Elementwise, PowByAConstantDifferentiatesWithoutALogarithm) {
  Graph graph;
  Builder b(graph);
  Value* x = graph.AddInput("x", DType::kFloat32, {4});
  Node* node = b.Op("Pow", {x, b.Int(2)})->producer;
  Value* dy = graph.AddInput("dy", DType::kFloat32, {4});
  struct Context : GradientContext {
    Context(Builder& b, Node& n, Value* d) : GradientContext(b, n), dy(d) {}
    Value* OutputGradient(size_t) override { return dy; }
    bool Needs(size_t i) const override { return i == 0; }
    void Add(size_t, Value*) override { ++added; }
    Value* Accumulator(size_t) override { return nullptr; }
    void SetAccumulator(size_t, Value*) override {}
    Value* dy;
    int added = 0;
  } context(b, *node, dy);
  node->schema->gradient(context);
  EXPECT_EQ(context.added, 1);
  for (const auto& made : graph.nodes()) EXPECT_NE(made->op(), "Log");
}

}  // namespace
}  // namespace weir
