// Reductions and softmax beyond the conformance cases: symbolic shapes, threads, long sums, wrong
// use.
#include <gtest/gtest.h>

#include <cmath>

#include "graph/builder.h"
#include "tests/kernels/run_op.h"

namespace weir {
namespace {

TEST(Reduce, WrongAxesAreErrors) {
  const auto error = [](std::vector<int64_t> axes) {
    const auto count = static_cast<int64_t>(axes.size());
    return ErrorOf([&] { RunOp("ReduceSum", {Normal({2, 3}, 1), Ints({count}, axes)}); });
  };
  EXPECT_NE(error({2}).find("axis 2 is out of range for rank 2"), std::string::npos) << error({2});
  EXPECT_NE(error({-3}).find("axis -3 is out of range"), std::string::npos);
  EXPECT_NE(error({1, -1}).find("given twice"), std::string::npos);
  EXPECT_NE(ErrorOf([] {
              RunOp("ReduceMax", {Ints({2, 0}, {}), Ints({1}, {1})});
            }).find("empty axis"),
            std::string::npos);
  EXPECT_NE(ErrorOf([] {
              RunOp("Softmax", {Normal({2, 3}, 1)}, 1, {{"axis", int64_t{2}}});
            }).find("axis 2"),
            std::string::npos);
}

TEST(Reduce, SameBitsOnAnyThreads) {
  const Array<float> x = Normal({37, 129, 65}, 1);
  for (const std::vector<int64_t>& axes : {std::vector<int64_t>{2}, {0}, {1}, {0, 2}, {0, 1, 2}}) {
    for (const char* op : {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceLogSumExp", "ReduceL2"}) {
      ExpectSameBitsOnAnyThreads(op, {x, Ints({static_cast<int64_t>(axes.size())}, axes)}, 1);
    }
  }
  ExpectSameBitsOnAnyThreads("Softmax", {x}, 1);
  ExpectSameBitsOnAnyThreads("LogSoftmax", {x}, 1, {{"axis", int64_t{1}}});
  ExpectSameBitsOnAnyThreads("SoftmaxGradient", {x, x}, 1);
}

// A float32 chain over 2^20 ones-and-a-bit is off by 1e-3; partial sums stay within a few eps.
TEST(Reduce, LongSumsKeepTheirDigits) {
  const int64_t n = 1 << 20;
  const Array<float> x = Array<float>::Floats({n, 1}, 1.0001f),
                     rows = Array<float>::Floats({n / 4, 4}, 1.0001f);
  const double exact = static_cast<double>(1.0001f);
  EXPECT_NEAR(RunOp("ReduceMean", {x})[0].f[0], exact, 4e-6);
  EXPECT_NEAR(RunOp("ReduceMean", {rows, Ints({1}, {0})})[0].f[3], exact, 4e-6);
}

TEST(Reduce, NanReachesTheMaximum) {
  Array<float> x = Normal({3, 40}, 1);
  x.f[45] = NAN;
  const auto y = RunOp("ReduceMax", {x, Ints({1}, {1})});
  EXPECT_TRUE(!std::isnan(y[0].f[0]) && std::isnan(y[0].f[1]) && !std::isnan(y[0].f[2]));
  EXPECT_TRUE(std::isnan(RunOp("ReduceMin", {x, Ints({1}, {0})})[0].f[5]));
}

TEST(Reduce, ShapesStaySymbolic) {
  Graph graph;
  Builder b(graph);
  Value* x = graph.AddInput("x", DType::kFloat32, {Dim::Batch(), Dim::Sequence(), 64});
  EXPECT_EQ(ToString(b.Op("ReduceMean", {x, b.Ints({-1})})->shape), "[batch,sequence,1]");
  EXPECT_EQ(ToString(b.Op("ReduceSum", {x, b.Ints({0, 2})}, {{"keepdims", int64_t{0}}})->shape),
            "[sequence]");
  EXPECT_EQ(
      ToString(b.Op("ReduceSum", {x, b.Ints({})}, {{"noop_with_empty_axes", int64_t{1}}})->shape),
      "[batch,sequence,64]");
  Value* axes = graph.AddInput("axes", DType::kInt64, {1});
  EXPECT_EQ(ToString(b.Op("ReduceMax", {x, axes})->shape), "[?,?,?]");
}

}  // namespace
}  // namespace weir
