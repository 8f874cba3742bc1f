// Symbolic inference of the shape ops: shapes and contents as expressions of batch and sequence,
// expected values by hand.
#include <gtest/gtest.h>

#include <limits>

#include "graph/builder.h"

namespace weir {
namespace {

const Dim kBatch = Dim::Batch(), kSequence = Dim::Sequence();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

class ShapeInfer : public testing::Test {
 protected:
  Value* Input(Shape shape, DType dtype = DType::kFloat32) {
    return graph.AddInput("x", dtype, std::move(shape));
  }
  // A rank-1 int64 value with these elements.
  Value* Known(Shape content) {
    Value* value = Input({static_cast<int64_t>(content.size())}, DType::kInt64);
    value->content = std::move(content);
    return value;
  }
  Value* Scalar(Dim content) {
    Value* value = Input({}, DType::kInt64);
    value->content = Shape{content};
    return value;
  }
  static std::string ShapeText(const Value* value) {
    return value->has_shape ? ToString(value->shape) : "none";
  }
  static std::string ContentText(const Value* value) {
    return value->content ? ToString(*value->content) : "none";
  }
  std::string Reshaped(Shape x, Shape target, int64_t allowzero = 0) {
    return ShapeText(b.Op("Reshape", {Input(std::move(x)), Known(std::move(target))},
                          {{"allowzero", allowzero}}));
  }
  std::string Sliced(Shape x, Dim start, Dim end, int64_t step = 1) {
    return ShapeText(b.Op(
        "Slice", {Input(std::move(x)), Known({start}), Known({end}), b.Ints({0}), b.Ints({step})}));
  }

  Graph graph;
  Builder b{graph};
};

TEST_F(ShapeInfer, ReshapeFindsTheMissingSize) {
  EXPECT_EQ(Reshaped({kBatch, kSequence, 64}, {kBatch, kSequence, -1, 16}),
            "[batch,sequence,4,16]");
  EXPECT_EQ(Reshaped({kBatch, kSequence, 64}, {0, 0, 4, -1}), "[batch,sequence,4,16]");
  EXPECT_EQ(Reshaped({kBatch, kSequence, 64}, {-1, 64}), "[batch*sequence,64]");
  EXPECT_EQ(Reshaped({kBatch * kSequence, 64}, {kBatch, kSequence, 64}), "[batch,sequence,64]");
  EXPECT_EQ(Reshaped({kBatch, kSequence, 4, 16}, {kBatch, -1, 64}), "[batch,sequence,64]");
}

TEST_F(ShapeInfer, ReshapeCopiesSizesItDoesNotKnow) {
  EXPECT_EQ(Reshaped({Dim::Unknown(), 4, 16}, {0, -1}), "[?,64]");
  EXPECT_EQ(Reshaped({Dim::Unknown(), 4, 16}, {-1, 64}), "[?,64]");
  EXPECT_EQ(Reshaped({kBatch, kSequence, 64}, {kBatch, Dim::Unknown(), 64}), "[batch,sequence,64]");
  EXPECT_EQ(Reshaped({0, 4, 16}, {0, -1}), "[0,64]");
  EXPECT_EQ(Reshaped({3, 0}, {0, 7}, 1), "[0,7]");
}

TEST_F(ShapeInfer, ReshapeWithoutContentKnowsTheRank) {
  EXPECT_EQ(ShapeText(b.Op("Reshape", {Input({2, 3}), Input({3}, DType::kInt64)})), "[?,?,?]");
  EXPECT_EQ(ShapeText(b.Op("Reshape", {Input({2, 3}), Input({kBatch}, DType::kInt64)})), "none");
}

TEST_F(ShapeInfer, ReshapeRefusesOtherElementCounts) {
  EXPECT_THROW(Reshaped({2, 3}, {4, 2}), Error);
  EXPECT_THROW(Reshaped({2, 3}, {4, -1}), Error);
  EXPECT_THROW(Reshaped({2, 3}, {-1, -1}), Error);
  EXPECT_THROW(Reshaped({2, 3}, {-2, 3}), Error);
  EXPECT_THROW(Reshaped({2, 3}, {2, 3, 0}), Error);
  EXPECT_THROW(Reshaped({0, 3}, {0, -1}, 1), Error);
  try {
    Reshaped({2, 3}, {4, -1});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidShape);
    EXPECT_NE(std::string(error.what()).find("6 elements do not divide by 4"), std::string::npos)
        << error.what();
  }
}

// The exporters' way to write a view: dims through Shape, Gather, Unsqueeze, Concat.
TEST_F(ShapeInfer, FollowsShapeArithmetic) {
  Value* x = Input({kBatch, kSequence, 64});
  Value* shape = b.Op("Shape", {x});
  EXPECT_EQ(ContentText(shape), "[batch,sequence,64]");
  Value* sequence = b.Op("Gather", {shape, b.Int(-2)});
  EXPECT_EQ(ShapeText(sequence), "[]");
  EXPECT_EQ(ContentText(sequence), "[sequence]");
  Value* column = b.Op("Unsqueeze", {sequence, b.Ints({0})});
  Value* target =
      b.Op("Concat", {b.Op("Slice", {shape, b.Ints({0}), b.Ints({1})}), column, b.Ints({-1, 16})},
           {{"axis", int64_t{0}}});
  EXPECT_EQ(ContentText(target), "[batch,sequence,-1,16]");
  EXPECT_EQ(ShapeText(b.Op("Reshape", {x, target})), "[batch,sequence,4,16]");
  EXPECT_EQ(ContentText(b.Op("Shape", {x}, {{"start", int64_t{-1}}})), "[64]");
  EXPECT_EQ(ContentText(b.Op("Size", {x})), "[64*batch*sequence]");
}

TEST_F(ShapeInfer, ConcatKeepsKnownElementsAmongUnknown) {
  Value* unknown = Input({2}, DType::kInt64);
  EXPECT_EQ(
      ContentText(b.Op("Concat", {Known({kBatch}), unknown, b.Ints({4})}, {{"axis", int64_t{0}}})),
      "[batch,?,?,4]");
}

TEST_F(ShapeInfer, CarriesContentThroughMovement) {
  Value* known = Known({kBatch, 2, kSequence});
  EXPECT_EQ(
      ContentText(b.Op("Slice", {known, b.Ints({-1}), b.Ints({kMin}), b.Ints({0}), b.Ints({-1})})),
      "[sequence,2,batch]");
  EXPECT_EQ(ContentText(b.Op("Gather", {known, b.Ints({2, 0})})), "[sequence,batch]");
  EXPECT_EQ(ContentText(b.Op("Identity", {known})), "[batch,2,sequence]");
  EXPECT_EQ(ContentText(b.Op("Cast", {known}, {{"to", int64_t{6}}})), "[batch,2,sequence]");
  EXPECT_EQ(ContentText(b.Op("Cast", {Known({0, kBatch, 7})}, {{"to", int64_t{9}}})), "[0,1,1]");
  EXPECT_EQ(ContentText(b.Op("Cast", {known}, {{"to", int64_t{1}}})), "none");
  EXPECT_EQ(ContentText(b.Op("Expand", {Scalar(kSequence), b.Ints({3})})),
            "[sequence,sequence,sequence]");
  EXPECT_EQ(ContentText(b.Op("Reshape", {Scalar(kBatch), b.Ints({-1})})), "[batch]");
  EXPECT_EQ(ContentText(b.Op("Squeeze", {Known({kBatch}), b.Ints({0})})), "[batch]");
  EXPECT_EQ(ContentText(b.Op("Tile", {known, b.Ints({2})})), "[batch,2,sequence,batch,2,sequence]");
  const auto parts = b.Ops("Split", {known, b.Ints({1, 2})}, 2);
  EXPECT_EQ(ContentText(parts[1]), "[2,sequence]");
}

// The legacy exporter's repeat_interleave.
TEST_F(ShapeInfer, OneHotCarriesRepeats) {
  Value* repeats = b.Op("OneHot", {b.Ints({1}), b.Ints({3}), Known({1, kBatch})});
  EXPECT_EQ(ContentText(repeats), "[1,batch,1]");
  Value* target = b.Op("Reshape", {repeats, b.Ints({-1})});
  EXPECT_EQ(ShapeText(b.Op("Tile", {Input({kSequence, 1, 64}), target})), "[sequence,batch,64]");
}

TEST_F(ShapeInfer, SliceUsesSymbolicBounds) {
  EXPECT_EQ(Sliced({kSequence, 4}, 0, kSequence), "[sequence,4]");
  EXPECT_EQ(Sliced({kSequence}, 0, kMax), "[sequence]");
  EXPECT_EQ(Sliced({2048}, 0, kSequence), "[sequence]");
  EXPECT_EQ(Sliced({kSequence * 2}, kSequence, kMax), "[sequence]");
  EXPECT_EQ(Sliced({kSequence * 2}, 0, kSequence), "[sequence]");
  EXPECT_EQ(Sliced({kSequence}, 0, kSequence * 2), "[sequence]");
  EXPECT_EQ(Sliced({kSequence}, -1, kMax), "[1]");
  EXPECT_EQ(Sliced({kSequence}, 0, 1), "[1]");
  EXPECT_EQ(Sliced({kSequence}, kMin, kMax), "[sequence]");
  EXPECT_EQ(Sliced({kSequence}, kSequence, kMax), "[0]");
  EXPECT_EQ(Sliced({kSequence}, -1, kMin, -1), "[sequence]");
  EXPECT_EQ(Sliced({kSequence * 4}, 0, kMax, 2), "[2*sequence]");
}

TEST_F(ShapeInfer, SliceDoesNotGuess) {
  EXPECT_EQ(Sliced({kSequence}, 0, 8), "[?]");      // sequence may be shorter
  EXPECT_EQ(Sliced({kSequence}, -2, kMax), "[?]");  // or be 1
  EXPECT_EQ(Sliced({kSequence}, 1, kMax), "[?]");
  EXPECT_EQ(Sliced({kSequence}, 0, -1), "[?]");
  EXPECT_EQ(Sliced({kSequence}, 0, kBatch), "[?]");
  EXPECT_EQ(Sliced({Dim::Unknown()}, 0, kSequence), "[?]");
  EXPECT_EQ(Sliced({kSequence}, Dim::Unknown(), kMax), "[?]");
}

TEST_F(ShapeInfer, ConstantSlicesClamp) {
  EXPECT_EQ(Sliced({10}, 2, 5), "[3]");
  EXPECT_EQ(Sliced({10}, -3, kMax), "[3]");
  EXPECT_EQ(Sliced({10}, 0, kMax, 4), "[3]");
  EXPECT_EQ(Sliced({10}, kMax, kMin, -3), "[4]");
  EXPECT_EQ(Sliced({10}, 7, 3), "[0]");
  EXPECT_EQ(Sliced({0}, 0, 5), "[0]");
  EXPECT_THROW(Sliced({10}, 0, 5, 0), Error);
}

TEST_F(ShapeInfer, MakersReadTheirShapeInput) {
  EXPECT_EQ(ShapeText(b.Op("Expand", {Input({1, 1, 8}), Known({kBatch, kSequence, 1})})),
            "[batch,sequence,8]");
  EXPECT_EQ(ShapeText(b.Op("Tile", {Input({1, 8}), Known({kBatch, 2})})), "[batch,16]");
  Value* range = b.Op("Range", {b.Int(0), Scalar(kSequence), b.Int(1)});
  EXPECT_EQ(ShapeText(range), "[sequence]");
  EXPECT_EQ(ContentText(range), "none");
  EXPECT_EQ(ContentText(b.Op("Range", {b.Int(1), b.Int(8), b.Int(3)})), "[1,4,7]");
  EXPECT_EQ(ShapeText(b.Op("Range", {Scalar(kSequence), Scalar(kSequence * 2), b.Int(1)})),
            "[sequence]");
  EXPECT_EQ(ShapeText(b.Op("Range", {b.Float(0), b.Float(1), b.Float(0.25f)})), "[4]");
  Value* ones = b.Op("ConstantOfShape", {b.Ints({2})}, {{"value", TensorData::FromInts({1}, {1})}});
  EXPECT_EQ(ContentText(ones), "[1,1]");
  EXPECT_EQ(ShapeText(b.Op("ConstantOfShape", {Known({kBatch, 4})})), "[batch,4]");
  EXPECT_EQ(ShapeText(b.Ops("TopK", {Input({kBatch, 8}), b.Ints({2})}, 2)[1]), "[batch,2]");
  EXPECT_EQ(ShapeText(b.Op("Pad", {Input({kBatch, 8}), b.Ints({0, 1, 0, 2})})), "[batch,11]");
}

TEST_F(ShapeInfer, MovementKeepsSymbols) {
  Value* x = Input({kBatch, kSequence, 4, 16});
  EXPECT_EQ(ShapeText(b.Op("Transpose", {x}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}})),
            "[batch,4,sequence,16]");
  EXPECT_EQ(ShapeText(b.Op("Flatten", {x}, {{"axis", int64_t{2}}})), "[batch*sequence,64]");
  EXPECT_EQ(
      ShapeText(b.Op("Gather", {Input({307, 64}), Input({kBatch, kSequence}, DType::kInt64)})),
      "[batch,sequence,64]");
  EXPECT_EQ(ShapeText(b.Op("Unsqueeze", {x, b.Ints({-1, 0})})), "[1,batch,sequence,4,16,1]");
  EXPECT_EQ(ShapeText(b.Op("Squeeze", {Input({kBatch, 1, kSequence})})), "[batch,sequence]");
  EXPECT_EQ(ShapeText(b.Op("Concat", {x, x}, {{"axis", int64_t{1}}})), "[batch,2*sequence,4,16]");
  EXPECT_EQ(
      ShapeText(b.Ops("Split", {x}, 2, {{"axis", int64_t{-1}}, {"num_outputs", int64_t{2}}})[1]),
      "[batch,sequence,4,8]");
  EXPECT_EQ(ShapeText(b.Op("ArgMax", {x}, {{"axis", int64_t{-1}}, {"keepdims", int64_t{0}}})),
            "[batch,sequence,4]");
  EXPECT_EQ(ShapeText(b.Op("GatherND", {x, Input({7, 2}, DType::kInt64)})), "[7,4,16]");
}

TEST_F(ShapeInfer, SequencesHaveATypeAndNoShape) {
  Value* parts = b.Op("SplitToSequence", {Input({6, 4}), b.Int(2)}, {{"axis", int64_t{0}}});
  Value* part = b.Op("SequenceAt", {parts, b.Int(0)});
  EXPECT_EQ(part->dtype, DType::kFloat32);
  EXPECT_FALSE(part->has_shape);
}

// A length near 2^63 must not wrap the bound on known contents.
TEST_F(ShapeInfer, ConcatOfAnAbsurdLengthKnowsNoContent) {
  Value* vast = Input({std::numeric_limits<int64_t>::max() - 1}, DType::kInt64);
  Value* joined = b.Op("Concat", {b.Ints({1}), vast}, {{"axis", int64_t{0}}});
  EXPECT_FALSE(joined->content.has_value());
}

TEST_F(ShapeInfer, WrongUseIsAnError) {
  Value* x = Input({2, 3});
  const auto throws = [&](const char* op, std::vector<Value*> inputs, Attributes attributes = {},
                          int outputs = 1) {
    EXPECT_THROW(b.Ops(op, std::move(inputs), outputs, std::move(attributes)), Error) << op;
  };
  throws("Transpose", {x}, {{"perm", std::vector<int64_t>{0, 0}}});
  throws("Transpose", {x}, {{"perm", std::vector<int64_t>{0, 1, 2}}});
  throws("Transpose", {x}, {{"perm", std::vector<int64_t>{0, 2}}});
  throws("Squeeze", {x, b.Ints({0})});
  throws("Squeeze", {x, b.Ints({2})});
  throws("Unsqueeze", {x, b.Ints({0, 0})});
  throws("Unsqueeze", {x, b.Ints({4})});
  throws("Flatten", {x}, {{"axis", int64_t{3}}});
  throws("Concat", {x, Input({2, 4})}, {{"axis", int64_t{0}}});
  throws("Concat", {x, Input({3})}, {{"axis", int64_t{0}}});
  throws("Concat", {x, x}, {{"axis", int64_t{2}}});
  throws("Split", {x, b.Ints({1, 2})}, {{"axis", int64_t{0}}}, 2);
  throws("Split", {x, b.Ints({3, -1})}, {{"axis", int64_t{0}}}, 2);
  throws("Split", {x}, {{"num_outputs", int64_t{3}}}, 2);
  throws("Slice", {x, b.Ints({0}), b.Ints({1}), b.Ints({2})});
  throws("Slice", {x, b.Ints({0, 0}), b.Ints({1})});
  throws("Gather", {x, b.Int(0)}, {{"axis", int64_t{2}}});
  throws("GatherElements", {x, Input({3, 3}, DType::kInt64)}, {{"axis", int64_t{1}}});
  throws("GatherElements", {x, Input({2}, DType::kInt64)});
  throws("GatherND", {x, Input({4, 3}, DType::kInt64)});
  throws("ScatterElements", {x, Input({1, 3}, DType::kInt64), Input({1, 2})});
  throws("ScatterElements", {x, Input({1, 3}, DType::kInt64), Input({1, 3})},
         {{"reduction", std::string("max")}});
  throws("ScatterND", {x, Input({2, 1}, DType::kInt64), Input({2, 2})});
  throws("Expand", {x, b.Ints({2, 4})});
  throws("Expand", {x, b.Ints({-1, 3})});
  throws("Tile", {x, b.Ints({1})});
  throws("Tile", {x, b.Ints({1, -1})});
  throws("Range", {b.Int(0), b.Int(4), b.Int(0)});
  throws("Range", {b.Int(0), b.Int(kMax), b.Int(1)});
  throws("ConstantOfShape", {b.Ints({-1})});
  throws("TopK", {x, b.Ints({4})}, {}, 2);
  throws("TopK", {x, b.Ints({-1})}, {}, 2);
  throws("Pad", {x, b.Ints({1, 1})});
  throws("Pad", {x, b.Ints({-2, 0, -1, 0})});
  throws("Pad", {x, b.Ints({1, 1, 1, 1})}, {{"mode", std::string("edge")}});
  throws("Trilu", {Input({3})});
  throws("Transpose", {nullptr});
  throws("Gather", {x, Input({2})});
  throws("GatherElements", {x, Input({1, 3}, DType::kBool)});
  throws("Slice", {x, Input({1}, DType::kInt8), b.Ints({1})});
  throws("Concat", {x, Input({2, 3}, DType::kInt64)}, {{"axis", int64_t{0}}});
  throws("ScatterElements", {x, Input({1, 3}, DType::kInt64), Input({1, 3}, DType::kInt32)});
  throws("GatherGradient", {Input({2, 2}), b.Ints({0, 1}), b.Ints({2, 3})});
  throws("GatherGradient", {Input({2, 3}, DType::kFloat64), b.Ints({0, 1}), b.Ints({2, 3})});
  throws("GatherElementsGradient", {Input({2, 2}), Input({2, 3}, DType::kInt64), b.Ints({2, 3})});
  throws("ExpandGradient", {x, b.Ints({2, 2})});
  throws("TileGradient", {x, b.Ints({2, 2})});
  throws("Cast", {x}, {{"to", int64_t{8}}});
  throws("CumSum", {x, b.Int(2)});
  throws("ArgMax", {Input({0, 3})}, {{"axis", int64_t{0}}});
}

}  // namespace
}  // namespace weir
