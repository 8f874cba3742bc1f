#include "graph/shape.h"

#include <gtest/gtest.h>

#include "graph/error.h"

namespace weir {
namespace {

const Dim kBatch = Dim::Batch(), kSequence = Dim::Sequence();

TEST(Dims, CountsElementsAndRefusesNonsense) {
  EXPECT_EQ(NumElements({}), 1);
  EXPECT_EQ(NumElements({3, 0, 5}), 0);
  EXPECT_EQ(NumElements({2, 17, 64}), 2176);
  EXPECT_THROW(NumElements({2, -1}), Error);
  EXPECT_THROW(NumElements({int64_t{1} << 40, int64_t{1} << 20}), Error);
  EXPECT_THROW(NumElements({int64_t{1} << 40, int64_t{1} << 40}), Error);
}

TEST(Dim, MultipliesAndEvaluates) {
  const Dim tokens = kBatch * kSequence;
  EXPECT_EQ(ToString(Dim(2) * tokens), "2*batch*sequence");
  EXPECT_EQ((Dim(2) * tokens * Dim(3)).Evaluate(5, 7), 210);
  EXPECT_EQ(tokens, kSequence * kBatch);
  EXPECT_FALSE(tokens == kBatch * kBatch);
  EXPECT_EQ(Dim(0) * Dim::Unknown(), Dim(0));
  EXPECT_FALSE((Dim(2) * Dim::Unknown()).IsKnown());
  EXPECT_FALSE((Dim(int64_t{1} << 40) * Dim(int64_t{1} << 40)).IsKnown());
}

TEST(Dim, AddsLikeTermsOnly) {
  EXPECT_EQ(kSequence + kSequence, Dim(2) * kSequence);
  EXPECT_EQ(Dim(3) + Dim(4), Dim(7));
  EXPECT_EQ(kSequence - kSequence, Dim(0));
  EXPECT_EQ(kSequence - Dim(0), kSequence);
  EXPECT_FALSE((kSequence + Dim(1)).IsKnown());
  EXPECT_FALSE((kSequence + kBatch).IsKnown());
}

TEST(Dim, DividesExactly) {
  EXPECT_EQ(DivExact(Dim(8) * kBatch * kSequence, Dim(4) * kSequence), Dim(2) * kBatch);
  EXPECT_EQ(DivExact(Dim(0), kBatch), Dim(0));
  EXPECT_FALSE(DivExact(Dim(7), Dim(2)).IsKnown());
  EXPECT_FALSE(DivExact(kBatch, kSequence).IsKnown());
  EXPECT_FALSE(DivExact(Dim(3), Dim(0)).IsKnown());
}

TEST(Dim, UnknownEqualsNothingAndHasNoValue) {
  EXPECT_FALSE(Dim::Unknown() == Dim::Unknown());
  EXPECT_FALSE(Same({Dim::Unknown()}, {Dim::Unknown()}));
  EXPECT_THROW(Dim::Unknown().Evaluate(1, 1), Error);
  EXPECT_THROW(kBatch.Constant(), Error);
  EXPECT_EQ(ToString(Shape{kBatch, Dim::Unknown(), 3}), "[batch,?,3]");
}

TEST(Shape, Broadcasts) {
  EXPECT_EQ(BroadcastDims({3, 1}, {4, 1, 5}), (Dims{4, 3, 5}));
  EXPECT_EQ(BroadcastDims({}, {2}), (Dims{2}));
  EXPECT_EQ(BroadcastDims({0, 3}, {1, 1}), (Dims{0, 3}));
  EXPECT_THROW(BroadcastDims({2}, {3}), Error);
  const auto symbolic = Broadcast({kBatch, 1, 4}, {kSequence, 1});
  ASSERT_TRUE(symbolic.has_value());
  EXPECT_EQ(ToString(*symbolic), "[batch,sequence,4]");
  EXPECT_EQ(ToString(*Broadcast({kBatch}, {8})), "[8]");
  EXPECT_EQ(ToString(*Broadcast({kBatch}, {kSequence})), "[?]");
}

}  // namespace
}  // namespace weir
