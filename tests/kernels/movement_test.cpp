// References of the movement and index ops against values worked out by hand, and their errors:
// they run on constants from untrusted files.
#include <gtest/gtest.h>

#include <limits>

#include "backend/kernel.h"
#include "graph/op_schema.h"
#include "kernels/common/strided.h"

namespace weir {
namespace {

using Ints = std::vector<int64_t>;
using Floats = std::vector<float>;
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

Array<float> I(Dims dims, Ints values, DType dtype = DType::kInt64) {
  Array<float> a;
  a.dtype = dtype;
  a.dims = std::move(dims);
  a.i = std::move(values);
  return a;
}
Array<float> I(Ints values) {
  const Dims dims = {static_cast<int64_t>(values.size())};
  return I(dims, std::move(values));
}
Array<float> F(Dims dims, Floats values) {
  Array<float> a;
  a.dims = std::move(dims);
  a.f = std::move(values);
  return a;
}
Array<float> Counting(Dims dims) {
  Array<float> a = Array<float>::Floats(std::move(dims));
  for (size_t k = 0; k < a.f.size(); ++k) a.f[k] = static_cast<float>(k);
  return a;
}

std::vector<Array<float>> EvaluateAll(const char* op, const std::vector<Array<float>>& inputs,
                                      Attributes attributes = {}, int outputs = 1) {
  std::vector<const Array<float>*> pointers;
  for (const auto& input : inputs)
    pointers.push_back(input.dtype == DType::kUndefined ? nullptr : &input);
  return Evaluate(GetOp(op), attributes, pointers, outputs);
}
Array<float> EvaluateOne(const char* op, const std::vector<Array<float>>& inputs,
                         Attributes attributes = {}) {
  return EvaluateAll(op, inputs, std::move(attributes))[0];
}
std::string MessageOf(const char* op, const std::vector<Array<float>>& inputs,
                      Attributes attributes = {}) {
  try {
    EvaluateOne(op, inputs, std::move(attributes));
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

TEST(Movement, TransposeMovesAxes) {
  const auto y = EvaluateOne("Transpose", {Counting({2, 3, 2})}, {{"perm", Ints{2, 0, 1}}});
  EXPECT_EQ(y.dims, (Dims{2, 2, 3}));
  EXPECT_EQ(y.f, (Floats{0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11}));
}

TEST(Movement, SliceTakesStepsBothWays) {
  const auto x = Counting({3, 4});
  EXPECT_EQ(EvaluateOne("Slice", {x, I({1, 0}), I({kMax, 4}), I({0, 1}), I({1, 2})}).f,
            (Floats{4, 6, 8, 10}));
  EXPECT_EQ(EvaluateOne("Slice", {x, I({-1}), I({kMin}), I({1}), I({-2})}).f,
            (Floats{3, 1, 7, 5, 11, 9}));
  EXPECT_EQ(EvaluateOne("Slice", {x, I({-100}), I({-2}), I({0})}).f, (Floats{0, 1, 2, 3}));
  EXPECT_EQ(EvaluateOne("Slice", {x, I({2}), I({1}), I({0})}).dims, (Dims{0, 4}));
}

TEST(Movement, SliceGradientPutsBack) {
  const auto dx =
      EvaluateOne("SliceGradient", {F({2}, {5, 7}), I({5}), I({-1}), I({0}), I({0}), I({-3})});
  EXPECT_EQ(dx.f, (Floats{0, 7, 0, 0, 5}));
}

TEST(Movement, ConcatAndSplitAlongTheMiddle) {
  const auto y =
      EvaluateOne("Concat", {Counting({2, 1, 2}), F({2, 2, 2}, {9, 8, 7, 6, 5, 4, 3, 2})},
                  {{"axis", int64_t{-2}}});
  EXPECT_EQ(y.f, (Floats{0, 1, 9, 8, 7, 6, 2, 3, 5, 4, 3, 2}));
  const auto parts = EvaluateAll("Split", {Counting({7})}, {{"num_outputs", int64_t{3}}}, 3);
  EXPECT_EQ(parts[0].f, (Floats{0, 1, 2}));
  EXPECT_EQ(parts[2].f, (Floats{6}));
}

TEST(Movement, ExpandAndTileRepeat) {
  EXPECT_EQ(EvaluateOne("Expand", {F({2, 1}, {1, 2}), I({3})}).f, (Floats{1, 1, 1, 2, 2, 2}));
  EXPECT_EQ(EvaluateOne("Tile", {Counting({2, 2}), I({1, 2})}).f, (Floats{0, 1, 0, 1, 2, 3, 2, 3}));
  EXPECT_EQ(EvaluateOne("ExpandGradient", {Counting({2, 3}), I({2, 1})}).f, (Floats{3, 12}));
  EXPECT_EQ(EvaluateOne("TileGradient", {Counting({2, 4}), I({2, 2})}).f, (Floats{2, 4, 10, 12}));
}

TEST(Movement, PadFillsAndCrops) {
  EXPECT_EQ(EvaluateOne("Pad", {Counting({2, 2}), I({0, 1, 1, -1}), F({}, {9})}).f,
            (Floats{9, 0, 9, 2, 9, 9}));
  EXPECT_EQ(EvaluateOne("Trilu", {Counting({2, 3}), I({}, {1})}).f, (Floats{0, 1, 2, 0, 0, 5}));
  EXPECT_EQ(EvaluateOne("Trilu", {Counting({2, 3})}, {{"upper", int64_t{0}}}).f,
            (Floats{0, 0, 0, 3, 4, 0}));
}

TEST(GatherScatter, GathersAlongAnyAxis) {
  const auto x = Counting({2, 3});
  EXPECT_EQ(EvaluateOne("Gather",
                        {
                            x,
                            I({2, 0}),
                        },
                        {{"axis", int64_t{1}}})
                .f,
            (Floats{2, 0, 5, 3}));
  EXPECT_EQ(EvaluateOne("Gather", {x, I({}, {-1})}).f, (Floats{3, 4, 5}));
  EXPECT_EQ(EvaluateOne("GatherElements", {x, I({2, 2}, {0, -1, 1, 1})}, {{"axis", int64_t{1}}}).f,
            (Floats{0, 2, 4, 4}));
  EXPECT_EQ(EvaluateOne("GatherElements", {x, I({1, 3}, {1, 0, 1})}).f, (Floats{3, 1, 5}));
  EXPECT_EQ(EvaluateOne("GatherND", {x, I({2, 2}, {1, 0, 0, -1})}).f, (Floats{3, 2}));
  EXPECT_EQ(EvaluateOne("GatherND", {x, I({2, 1}, {2, 0})}, {{"batch_dims", int64_t{1}}}).f,
            (Floats{2, 3}));
}

TEST(GatherScatter, GradientsAddRepeatedIds) {
  EXPECT_EQ(
      EvaluateOne("GatherGradient", {F({3, 2}, {1, 2, 3, 4, 5, 6}), I({1, 0, 1}), I({2, 2})}).f,
      (Floats{3, 4, 6, 8}));
  EXPECT_EQ(
      EvaluateOne("GatherElementsGradient", {F({1, 3}, {1, 2, 4}), I({1, 3}, {2, 2, 0}), I({1, 3})},
                  {{"axis", int64_t{1}}})
          .f,
      (Floats{4, 0, 3}));
}

TEST(GatherScatter, ScattersSetsAndAdds) {
  const auto data = Counting({3, 2});
  const auto updates = F({2, 1}, {10, 20});
  EXPECT_EQ(EvaluateOne("ScatterElements", {data, I({2, 1}, {2, 2}), updates}).f,
            (Floats{0, 1, 2, 3, 20, 5}));
  EXPECT_EQ(EvaluateOne("ScatterElements", {data, I({2, 1}, {2, 2}), updates},
                        {{"reduction", std::string("add")}})
                .f,
            (Floats{0, 1, 2, 3, 34, 5}));
  EXPECT_EQ(EvaluateOne("ScatterND", {data, I({1, 1}, {-1}), F({1, 2}, {7, 8})}).f,
            (Floats{0, 1, 2, 3, 7, 8}));
}

TEST(GatherScatter, BadIdsAreNamedByPositionAndValue) {
  const auto x = Counting({2, 3});
  EXPECT_EQ(MessageOf("Gather", {x, I({0, 2})}), "index 2 at position 1 is outside [-2, 2)");
  EXPECT_EQ(MessageOf("GatherElements", {x, I({1, 2}, {0, -3})}),
            "index -3 at position 1 is outside [-2, 2)");
  EXPECT_EQ(MessageOf("GatherND", {x, I({1, 2}, {0, kMin})}),
            "index -9223372036854775808 at position 1 is outside [-3, 3)");
  EXPECT_EQ(MessageOf("ScatterElements", {x, I({1, 1}, {5}), F({1, 1}, {0})}),
            "index 5 at position 0 is outside [-2, 2)");
}

TEST(Order, TopKBreaksTiesByLowestId) {
  const auto y =
      EvaluateAll("TopK", {F({6}, {1, 3, 3, 0, 3, 1}), I({4})}, {{"sorted", int64_t{0}}}, 2);
  EXPECT_EQ(y[0].f, (Floats{3, 3, 3, 1}));
  EXPECT_EQ(y[1].i, (Ints{1, 2, 4, 0}));
  const auto smallest =
      EvaluateAll("TopK", {F({2, 3}, {2, 2, 1, 0, 0, 0}), I({2})}, {{"largest", int64_t{0}}}, 2);
  EXPECT_EQ(smallest[1].i, (Ints{2, 0, 0, 1}));
}

TEST(Order, NanIsAboveEveryNumber) {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(EvaluateAll("TopK", {F({5}, {1, nan, inf, nan, -inf}), I({3})}, {}, 2)[1].i,
            (Ints{1, 3, 2}));
  EXPECT_EQ(EvaluateOne("ArgMax", {F({3}, {1, nan, inf})}).i, (Ints{1}));
  EXPECT_EQ(EvaluateOne("ArgMin", {F({3}, {1, nan, inf})}).i, (Ints{0}));
}

TEST(Order, CumSumVariants) {
  const auto x = F({4}, {1, 2, 3, 4});
  const auto axis = I({}, {0});
  const auto cum = [&](int64_t exclusive, int64_t reverse) {
    return EvaluateOne("CumSum", {x, axis}, {{"exclusive", exclusive}, {"reverse", reverse}}).f;
  };
  EXPECT_EQ(cum(0, 0), (Floats{1, 3, 6, 10}));
  EXPECT_EQ(cum(1, 0), (Floats{0, 1, 3, 6}));
  EXPECT_EQ(cum(0, 1), (Floats{10, 9, 7, 4}));
  EXPECT_EQ(cum(1, 1), (Floats{9, 7, 4, 0}));
}

TEST(Order, NonZeroAndOneHot) {
  const auto y = EvaluateOne("NonZero", {I({2, 2}, {0, 5, 1, 0}, DType::kBool)});
  EXPECT_EQ(y.dims, (Dims{2, 2}));
  EXPECT_EQ(y.i, (Ints{0, 1, 1, 0}));
  EXPECT_EQ(EvaluateOne("OneHot", {I({1, -1, 3}), I({}, {3}), I({0, 1})}).i,
            (Ints{0, 1, 0, 0, 0, 1, 0, 0, 0}));
}

TEST(Cast, TruncatesSaturatesAndKeepsLowBits) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(
      EvaluateOne("Cast", {F({5}, {-2.9f, 2.9f, 1e20f, -1e20f, nan})}, {{"to", int64_t{6}}}).i,
      (Ints{-2, 2, 2147483647, -2147483648, 0}));
  EXPECT_EQ(EvaluateOne("Cast", {I({300, -1})}, {{"to", int64_t{2}}}).i, (Ints{44, 255}));
  EXPECT_EQ(EvaluateOne("Cast", {F({3}, {0, -0.0f, 0.5f})}, {{"to", int64_t{9}}}).i,
            (Ints{0, 0, 1}));
  EXPECT_EQ(EvaluateOne("Cast", {F({1}, {1.00390625f})}, {{"to", int64_t{16}}}).f,
            (Floats{1.0f}));  // tie to even
}

TEST(Movement, HugeResultsAreRefused) {
  const int64_t big = int64_t{1} << 20;
  const auto one = F({1, 1}, {1});
  EXPECT_NE(MessageOf("Expand", {one, I({big, big})}).find("at most 2^31"), std::string::npos);
  EXPECT_NE(MessageOf("Tile", {one, I({big, big})}).find("at most 2^31"), std::string::npos);
  EXPECT_NE(MessageOf("ConstantOfShape", {I({big, big})}).find("at most 2^31"), std::string::npos);
  EXPECT_NE(MessageOf("Pad", {one, I({0, 0, big, big})}).find("at most 2^31"), std::string::npos);
  EXPECT_NE(
      MessageOf("OneHot", {I({0, 0}), I({}, {int64_t{1} << 40}), I({0, 1})}).find("at most 2^31"),
      std::string::npos);
  EXPECT_NE(MessageOf("Range", {I({}, {kMin}), I({}, {kMax}), I({}, {1})}).find("at most 2^31"),
            std::string::npos);
  EXPECT_NE(MessageOf("Tile", {F({2}, {1, 1}), I({kMax})}), "");
  EXPECT_NE(MessageOf("Pad", {F({2}, {1, 1}), I({kMax, kMax})}), "");
  EXPECT_NE(MessageOf("SliceGradient", {F({1}, {1}), I({big * big}), I({0}), I({1})}), "");
}

TEST(Movement, WrongOperandsAreErrors) {
  const auto x = Counting({2, 3});
  EXPECT_NE(MessageOf("Reshape", {x, F({1}, {6})}), "");  // shape must be integers
  EXPECT_NE(MessageOf("Concat", {x, I({2, 3}, {1, 2, 3, 4, 5, 6})}, {{"axis", int64_t{0}}}), "");
  EXPECT_NE(MessageOf("Concat", {x, x}), "");  // axis is required
  EXPECT_NE(MessageOf("TopK", {x, I({1, 1})}), "");
  EXPECT_NE(MessageOf("GatherGradient", {F({1}, {1}), I({0, 1}), I({3})}), "");  // dy of other dims
  EXPECT_NE(MessageOf("ExpandGradient", {x, I({2, 2})}), "");
  EXPECT_NE(MessageOf("TileGradient", {x, I({2, 2})}), "");
  EXPECT_NE(MessageOf("ScatterElements", {x, I({1, 1}, {0}), I({1, 1}, {0})}), "");
  EXPECT_NE(MessageOf("CumSum", {x, I({0, 1})}), "");
}

// Blocks larger than a work unit, with every kind of inner step, against the definition.
TEST(Strided, CopiesAndSumsLargeBlocks) {
  const int64_t n = 70, m = 9001;
  std::vector<float> x(static_cast<size_t>(n * m));
  for (size_t k = 0; k < x.size(); ++k) x[k] = static_cast<float>(k % 977);
  const auto* from = reinterpret_cast<const std::byte*>(x.data());
  std::vector<float> y(x.size());
  auto* to = reinterpret_cast<std::byte*>(y.data());
  CopyStrided({{m, n}, {n, 1}, {1, m}}, to, from, 4);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) ASSERT_EQ(y[i * n + j], x[j * m + i]) << i << "," << j;
  }
  CopyStrided({{n, m}, {m, 1}, {m, 1}}, to, from, 4);
  EXPECT_EQ(y, x);
  CopyStrided({{n, m}, {m, 1}, {m, -1}}, to, from + 4 * (m - 1), 4);
  for (int64_t k = 0; k < m; ++k) ASSERT_EQ(y[3 * m + k], x[4 * m - 1 - k]);
  CopyStrided({{n, m}, {m, 1}, {m, 0}}, to, from, 4);
  for (int64_t k = 0; k < m; ++k) ASSERT_EQ(y[5 * m + k], x[5 * m]);
  std::vector<float> columns(m), rows(n);
  SumStrided({{n, m}, {0, 1}, {m, 1}}, columns.data(), x.data());
  SumStrided({{n, m}, {1, 0}, {m, 1}}, rows.data(), x.data());
  std::vector<double> column_sums(m, 0), row_sums(n, 0);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < m; ++j) {
      column_sums[j] += x[i * m + j];
      row_sums[i] += x[i * m + j];
    }
  }
  for (int64_t j = 0; j < m; ++j) ASSERT_EQ(columns[j], static_cast<float>(column_sums[j]));
  for (int64_t i = 0; i < n; ++i) ASSERT_EQ(rows[i], static_cast<float>(row_sums[i]));
}

}  // namespace
}  // namespace weir
