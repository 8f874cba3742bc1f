// Attention whose rows hold several documents: each must be as if it were alone.
#include <gtest/gtest.h>

#include "tests/kernels/run_op.h"

namespace weir {
namespace {

// Positions [begin, end) of an array [1,S,...].
Array<float> Part(const Array<float>& all, int64_t begin, int64_t end) {
  Array<float> part = all;
  const int64_t row = all.elements() / all.dims[1];
  part.dims[1] = end - begin;
  part.f.assign(all.f.begin() + begin * row, all.f.begin() + end * row);
  return part;
}

Array<float> StartsOf(const std::vector<int64_t>& begins, int64_t sequence) {
  std::vector<int64_t> starts;
  for (int64_t i = 0, document = -1; i < sequence; ++i) {
    if (document + 1 < std::ssize(begins) && begins[static_cast<size_t>(document + 1)] == i) ++document;
    starts.push_back(begins[static_cast<size_t>(document)]);
  }
  return Ints({1, sequence}, starts);
}

TEST(AttentionDocuments, EachIsAsIfAlone) {
  constexpr int64_t kSequence = 260;
  const std::vector<int64_t> begins = {0, 1, 64, 65, 190};
  const Inputs in = {Normal({1, kSequence, 4, 8}, 1), Normal({1, kSequence, 2, 8}, 2), Normal({1, kSequence, 2, 6}, 3)};
  const Array<float> dy = Normal({1, kSequence, 4, 6}, 4);
  for (const Attributes& attributes : {Attributes{}, Attributes{{"window", int64_t{50}}, {"softcap", 3.0}}}) {
    const Array<float> starts = StartsOf(begins, kSequence);
    const auto packed = RunOp("Attention", {in[0], in[1], in[2], Absent(), starts}, 2, attributes);
    const auto gradients = RunOp("AttentionGradient", {in[0], in[1], in[2], packed[0], packed[1], dy, Absent(), Absent(), starts}, 3, attributes);
    for (size_t d = 0; d < begins.size(); ++d) {
      const int64_t begin = begins[d], end = d + 1 < begins.size() ? begins[d + 1] : kSequence;
      const Inputs own = {Part(in[0], begin, end), Part(in[1], begin, end), Part(in[2], begin, end)};
      const auto alone = RunReference("Attention", own, 2, attributes);
      EXPECT_LT(RelativeError(Part(packed[0], begin, end), alone[0]), 2e-6) << "document " << d;
      const Array<float> y = Part(packed[0], begin, end);
      Array<float> lse = Floats({1, 4, end - begin}, {});
      for (int64_t h = 0; h < 4; ++h) lse.f.insert(lse.f.end(), packed[1].f.begin() + h * kSequence + begin, packed[1].f.begin() + h * kSequence + end);
      const auto truth = RunReference("AttentionGradient", {own[0], own[1], own[2], y, lse, Part(dy, begin, end)}, 3, attributes);
      for (size_t g = 0; g < 3; ++g) {
        if (end - begin == 1 && g < 2) continue;  // one token: dq and dk are 0 up to rounding
        EXPECT_LT(RelativeError(Part(gradients[g], begin, end), truth[g]), 5e-6) << "document " << d << ", gradient " << g;
      }
    }
  }
}

// One document a row is what there is without starts, bit by bit.
TEST(AttentionDocuments, OneIsTheRowItself) {
  const Inputs in = {Normal({2, 150, 4, 8}, 1), Normal({2, 150, 2, 8}, 2), Normal({2, 150, 2, 8}, 3), Normal({4}, 4)};
  Inputs with = in;
  with.push_back(Ints({2, 150}, std::vector<int64_t>(300, 0)));
  const auto plain = RunOp("Attention", in, 2), one = RunOp("Attention", with, 2);
  EXPECT_EQ(plain[0].f, one[0].f);
  EXPECT_EQ(plain[1].f, one[1].f);
}

TEST(AttentionDocuments, SameBitsOnAnyThreads) {
  const Array<float> starts = StartsOf({0, 7, 100, 130}, 200);
  const Inputs in = {Normal({1, 200, 2, 8}, 1), Normal({1, 200, 1, 8}, 2), Normal({1, 200, 1, 8}, 3), Absent(), starts};
  ExpectSameBitsOnAnyThreads("Attention", in, 2, {});
  const auto y = RunOp("Attention", in, 2);
  ExpectSameBitsOnAnyThreads("AttentionGradient", {in[0], in[1], in[2], y[0], y[1], Normal({1, 200, 2, 8}, 5), Absent(), Absent(), starts}, 3, {});
}

TEST(AttentionDocuments, WrongStartsAreErrors_C7_C8) {
  const auto message = [](const Array<float>& starts, const Attributes& attributes = {}) {
    const Array<float> x = Normal({1, 3, 1, 4}, 1);
    return ErrorOf([&] { RunOp("Attention", {x, x, x, Absent(), starts}, 1, attributes); });
  };
  EXPECT_EQ(message(Ints({1, 3}, {0, 1, 1})), "");
  EXPECT_NE(message(Ints({1, 3}, {0, 2, 2})).find("the start of query 1 of row 0 is 2, expected 0..1"), std::string::npos);
  EXPECT_NE(message(Ints({1, 3}, {0, 1, 0})).find("the start of query 2 of row 0 is 0, expected 1..2"), std::string::npos);
  EXPECT_NE(message(Ints({1, 3}, {-1, 0, 0})).find("is -1"), std::string::npos);
  EXPECT_NE(message(Ints({1, 2}, {0, 0})).find("C7"), std::string::npos);
  EXPECT_NE(message(Floats({1, 3}, {0, 0, 0})).find("C7"), std::string::npos);
  EXPECT_NE(message(Ints({1, 3}, {0, 0, 0}), {{"causal", int64_t{0}}}).find("C7"), std::string::npos);
}

}  // namespace
}  // namespace weir
