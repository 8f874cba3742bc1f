#include "graph/parameter.h"

#include <gtest/gtest.h>

#include <numeric>

#include "graph/error.h"
#include "graph/parameter_lines.h"

namespace weir {
namespace {

std::vector<float> Count(int64_t n, float first = 0) {
  std::vector<float> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), first);
  return values;
}

struct Fixture {
  Graph graph;
  Value* parameter;
  Fixture(Dims dims, std::vector<ParameterPiece> pieces) {
    parameter = graph.AddValue("w", Role::kParameter);
    parameter->shape = ToShape(dims);
    parameter->has_shape = true;
    parameter->parameter = std::make_unique<ParameterInfo>();
    float first = 0;
    for (const ParameterPiece& piece : pieces) {
      const int64_t count = NumElements(piece.dims);
      graph.initializers[piece.tensor] = TensorData::FromFloats(piece.dims, Count(count, first));
      first += static_cast<float>(count);
    }
    parameter->parameter->initializers = std::move(pieces);
  }
};

TEST(Parameter, TransposesAPiece) {
  // file [2,3] 0 1 2 / 3 4 5, canonical [3,2]
  const Fixture f({3, 2}, {{.tensor = "a", .dims = {2, 3}, .perm = {1, 0}, .offset = {}}});
  EXPECT_EQ(LoadParameter(f.graph, *f.parameter), (std::vector<float>{0, 3, 1, 4, 2, 5}));
}

TEST(Parameter, DeinterleavesAnAxis) {
  // rows g0 u0 g1 u1 become g0 g1 u0 u1
  const Fixture f({4, 2}, {{.tensor = "a", .dims = {4, 2}, .perm = {}, .deinterleave_axis = 0, .offset = {}}});
  EXPECT_EQ(LoadParameter(f.graph, *f.parameter), (std::vector<float>{0, 1, 4, 5, 2, 3, 6, 7}));
}

TEST(Parameter, DeinterleavesAfterThePermutation) {
  // file [1,2,4] = k x rows g0 u0 g1 u1; perm {0,2,1} gives rows first
  const Fixture f({1, 4, 2},
                  {{.tensor = "a", .dims = {1, 2, 4}, .perm = {0, 2, 1}, .deinterleave_axis = 1, .offset = {}}});
  EXPECT_EQ(LoadParameter(f.graph, *f.parameter), (std::vector<float>{0, 4, 2, 6, 1, 5, 3, 7}));
}

TEST(Parameter, StacksPiecesAtTheirOffsets) {
  // Two experts' [1,2] tensors into [2,2,2]: gate rows, then up rows; ranks differ, so left-padded.
  const Fixture f({2, 2, 2}, {{.tensor = "g0", .dims = {1, 2}, .perm = {}, .offset = {0, 0, 0}},
                              {.tensor = "g1", .dims = {1, 2}, .perm = {}, .offset = {1, 0, 0}},
                              {.tensor = "u0", .dims = {1, 2}, .perm = {}, .offset = {0, 1, 0}},
                              {.tensor = "u1", .dims = {1, 2}, .perm = {}, .offset = {1, 1, 0}}});
  EXPECT_EQ(LoadParameter(f.graph, *f.parameter), (std::vector<float>{0, 1, 4, 5, 2, 3, 6, 7}));
}

TEST(Parameter, ExtractingIsTheInverseOfLoading) {
  const std::vector<ParameterPiece> pieces = {
      {.tensor = "a", .dims = {4, 6}, .perm = {1, 0}, .deinterleave_axis = 0, .offset = {0, 0}},
      {.tensor = "b", .dims = {6, 3}, .perm = {}, .offset = {0, 4}}};
  const Fixture f({6, 7}, pieces);
  const auto canonical = LoadParameter(f.graph, *f.parameter);
  for (const ParameterPiece& piece : pieces) {
    EXPECT_EQ(ExtractPiece(piece, {6, 7}, canonical), f.graph.initializers.at(piece.tensor)->AsFloats()) << piece.tensor;
  }
  EXPECT_EQ(PieceExtent(pieces[0]), (Dims{6, 4}));
}

TEST(Parameter, MissingBytesAreNamed) {
  Fixture f({2}, {{.tensor = "there", .dims = {2}, .perm = {}, .offset = {}}});
  EXPECT_TRUE(HasAllData(f.graph, *f.parameter));
  f.graph.initializers["there"] = nullptr;
  EXPECT_FALSE(HasAllData(f.graph, *f.parameter));
  try {
    LoadParameter(f.graph, *f.parameter);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidModel);
    EXPECT_NE(error.message().find("'there'"), std::string::npos);
  }
}

// Rows [1, 3) of 4: from one tensor, from one per row, and where axis 0 does not lead in the file.
TEST(Parameter, LoadsOnlyTheShardItHolds) {
  const auto load = [](std::vector<ParameterPiece> pieces) {
    Fixture f({4, 2}, std::move(pieces));
    f.parameter->shape[0] = 2;
    f.parameter->parameter->shard = ParameterShard{.first = 1, .total = 4};
    EXPECT_EQ(WholeDims(*f.parameter), (Dims{4, 2}));
    return LoadParameter(f.graph, *f.parameter);
  };
  EXPECT_EQ(load({{.tensor = "a", .dims = {4, 2}, .perm = {}, .offset = {}}}), (std::vector<float>{2, 3, 4, 5}));
  EXPECT_EQ(load({{.tensor = "a", .dims = {2, 2}, .perm = {}, .offset = {0, 0}},
                  {.tensor = "b", .dims = {2, 2}, .perm = {}, .offset = {2, 0}}}),
            (std::vector<float>{2, 3, 4, 5}));
  EXPECT_EQ(load({{.tensor = "a", .dims = {2}, .perm = {}, .offset = {0, 0}},
                  {.tensor = "b", .dims = {2}, .perm = {}, .offset = {1, 0}},
                  {.tensor = "c", .dims = {2}, .perm = {}, .offset = {2, 0}},
                  {.tensor = "d", .dims = {2}, .perm = {}, .offset = {3, 0}}}),
            (std::vector<float>{2, 3, 4, 5}));
  EXPECT_EQ(load({{.tensor = "a", .dims = {2, 4}, .perm = {1, 0}, .offset = {}}}), (std::vector<float>{1, 5, 2, 6}));
}

// Columns of expert rows: the axis that leads stays, the others are permuted and interleaved.
TEST(Parameter, LoadsAShardOfPermutedRows) {
  Fixture f({3, 4, 1}, {{.tensor = "a", .dims = {3, 1, 4}, .perm = {0, 2, 1}, .deinterleave_axis = 1, .offset = {}}});
  f.parameter->shape[0] = 1;
  f.parameter->parameter->shard = ParameterShard{.first = 2, .total = 3};
  EXPECT_EQ(LoadParameter(f.graph, *f.parameter), (std::vector<float>{8, 10, 9, 11}));
}

// Of every float type; permuted, deinterleaved on the last axis, stacked, a shard: any cut gives what is there.
TEST(Parameter, APartIsThatOfTheWhole) {
  struct Case {
    Dims dims;
    std::vector<ParameterPiece> pieces;
    std::vector<float> want;
  };
  const Case cases[] = {
      {{3, 4}, {{.tensor = "a", .dims = {4, 3}, .perm = {1, 0}, .offset = {}}}, {0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11}},
      {{2, 5}, {{.tensor = "a", .dims = {2, 4}, .perm = {}, .deinterleave_axis = 1, .offset = {0, 1}}}, {0, 0, 2, 1, 3, 0, 4, 6, 5, 7}},
      {{2, 2, 2}, {{.tensor = "g", .dims = {2, 2}, .perm = {1, 0}, .offset = {1, 0, 0}}, {.tensor = "u", .dims = {2}, .perm = {}, .offset = {0, 1, 0}}},
       {0, 0, 4, 5, 0, 2, 1, 3}},
      {{5}, {{.tensor = "a", .dims = {2}, .perm = {}, .offset = {3}}, {.tensor = "b", .dims = {3}, .perm = {}, .offset = {}}}, {2, 3, 4, 0, 1}},
  };
  for (const Case& c : cases) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
      for (const int64_t held : {int64_t{0}, int64_t{1}}) {
        Fixture f(c.dims, c.pieces);
        for (auto& [name, data] : f.graph.initializers) data = TensorData::Owned(dtype, data->dims(), EncodeFloats(data->AsFloats(), dtype));
        const int64_t row = NumElements(c.dims) / c.dims[0];
        f.parameter->shape[0] = c.dims[0] - held;
        if (held > 0) f.parameter->parameter->shard = ParameterShard{.first = held, .total = c.dims[0]};
        const std::vector<float> want(c.want.begin() + held * row, c.want.end());
        EXPECT_EQ(LoadParameter(f.graph, *f.parameter), want);
        for (int64_t first = 0; first < std::ssize(want); ++first) {
          for (int64_t last = first; last <= std::ssize(want); ++last) {
            std::vector<float> part(static_cast<size_t>(last - first), -1);
            LoadParameterPart(f.graph, *f.parameter, first, part);
            EXPECT_EQ(part, std::vector<float>(want.begin() + first, want.begin() + last)) << DTypeName(dtype) << " " << first << " " << last;
          }
        }
      }
    }
  }
}

TEST(Parameter, WholeNumbersAreNoWeights) {
  Fixture f({2}, {{.tensor = "a", .dims = {2}, .perm = {}, .offset = {}}});
  f.graph.initializers["a"] = TensorData::FromInts({2}, {1, 2});
  EXPECT_THROW(LoadParameter(f.graph, *f.parameter), Error);
}

}  // namespace
}  // namespace weir
