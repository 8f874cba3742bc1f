// Attention of a share of the queries: the rows of the whole, bit by bit, and sums over shares that are the whole's.
#include <gtest/gtest.h>

#include "kernels/common/row_share.h"
#include "tests/kernels/run_op.h"

namespace weir {
namespace {

// Positions of a share, by the words of its definition.
std::vector<int64_t> PositionsOf(const RowShare& rows, int64_t sequence) {
  const int64_t run = sequence / (2 * rows.shares);
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < run; ++i) positions.push_back(rows.share * run + i);
  for (int64_t i = 0; i < run; ++i) positions.push_back(sequence - (rows.share + 1) * run + i);
  return positions;
}

// Of an array [batch,...] with positions on `axis`.
Array<float> Picked(const Array<float>& all, const std::vector<int64_t>& positions, size_t axis) {
  Array<float> picked = all;
  picked.dims[axis] = std::ssize(positions);
  picked.f.clear();
  int64_t outer = 1, inner = 1;
  for (size_t i = 0; i < axis; ++i) outer *= all.dims[i];
  for (size_t i = axis + 1; i < all.dims.size(); ++i) inner *= all.dims[i];
  for (int64_t o = 0; o < outer; ++o) {
    for (const int64_t position : positions) {
      const auto from = all.f.begin() + (o * all.dims[axis] + position) * inner;
      picked.f.insert(picked.f.end(), from, from + inner);
    }
  }
  return picked;
}

struct Setting {
  Attributes attributes;
  bool sinks;
  std::vector<int64_t> starts;  // of one row; empty = none
};

// A sum in float32 errs by up to 40 of them of the array's rms here, sharpened by the window.
constexpr double kEps = 1.1920929e-7;

// 280 positions: runs of 70 or 35 end within tiles of 64.
constexpr int64_t kSequence = 280;

std::vector<Setting> Settings() {
  std::vector<int64_t> starts;
  for (int64_t i = 0; i < kSequence; ++i) starts.push_back(i < 30 ? 0 : i < 201 ? 30 : 201);
  return {{{}, false, {}}, {{{"window", int64_t{50}}}, true, {}}, {{{"causal", int64_t{0}}, {"softcap", 3.0}}, false, {}}, {{}, true, starts}};
}

Inputs DrawnFor(const Setting& setting, int64_t kv_heads) {
  Inputs in = {Normal({2, kSequence, 4, 8}, 1), Normal({2, kSequence, kv_heads, 8}, 2), Normal({2, kSequence, kv_heads, 6}, 3)};
  in.push_back(setting.sinks ? Normal({4}, 4) : Absent());
  std::vector<int64_t> starts = setting.starts;
  starts.insert(starts.end(), setting.starts.begin(), setting.starts.end());
  in.push_back(starts.empty() ? Absent() : Ints({2, kSequence}, starts));
  return in;
}

Attributes WithRows(Attributes attributes, const RowShare& rows) {
  attributes.Set("row_shares", rows.shares);
  attributes.Set("row_share", rows.share);
  return attributes;
}

Inputs BackwardOf(const Inputs& in, const Array<float>& y, const Array<float>& lse, const Array<float>& dy) {
  return {in[0], in[1], in[2], y, lse, dy, in[3], Absent(), in[4]};
}

TEST(AttentionRows, AShareHasTheBitsOfTheWhole) {
  for (const Setting& setting : Settings()) {
    for (const int64_t kv_heads : {1, 4}) {  // fewer heads than threads take the two-sweep backward
      const Inputs in = DrawnFor(setting, kv_heads);
      const Array<float> dy = Normal({2, kSequence, 4, 6}, 5);
      const auto whole = RunOp("Attention", in, 2, setting.attributes);
      const auto dwhole = RunOp("AttentionGradient", BackwardOf(in, whole[0], whole[1], dy), 3, setting.attributes);
      for (const int64_t shares : {2, 4}) {
        std::vector<Array<double>> sums;  // dk, dv
        for (RowShare rows{shares, 0}; rows.share < shares; ++rows.share) {
          const auto positions = PositionsOf(rows, kSequence);
          const Attributes attributes = WithRows(setting.attributes, rows);
          Inputs own = in;
          own[0] = Picked(in[0], positions, 1);
          const auto y = RunOp("Attention", own, 2, attributes);
          EXPECT_EQ(y[0].f, Picked(whole[0], positions, 1).f) << shares << " " << rows.share;
          EXPECT_EQ(y[1].f, Picked(whole[1], positions, 2).f) << shares << " " << rows.share;
          const auto d = RunOp("AttentionGradient", BackwardOf(own, y[0], y[1], Picked(dy, positions, 1)), 3, attributes);
          EXPECT_EQ(d[0].f, Picked(dwhole[0], positions, 1).f) << shares << " " << rows.share;
          for (size_t g = 1; g < 3; ++g) {
            if (rows.share == 0) sums.push_back({.dtype = DType::kFloat32, .dims = d[g].dims, .f = std::vector<double>(d[g].f.size()), .i = {}});
            for (size_t k = 0; k < d[g].f.size(); ++k) sums[g - 1].f[k] += d[g].f[k];
          }
        }
        for (size_t g = 1; g < 3; ++g) EXPECT_LT(RelativeError(dwhole[g], sums[g - 1]), 64 * kEps) << shares << " gradient " << g;
      }
    }
  }
}

TEST(AttentionRows, SameBitsOnAnyThreads) {
  const Attributes attributes = WithRows({}, {2, 1});
  const Inputs in = {Normal({1, 150, 2, 8}, 1), Normal({1, 300, 1, 8}, 2), Normal({1, 300, 1, 8}, 3)};
  ExpectSameBitsOnAnyThreads("Attention", in, 2, attributes);
  const auto y = RunOp("Attention", in, 2, attributes);
  ExpectSameBitsOnAnyThreads("AttentionGradient", {in[0], in[1], in[2], y[0], y[1], Normal({1, 150, 2, 8}, 5)}, 3, attributes);
}

TEST(AttentionRows, WrongSharesAreErrors_C2_C9) {
  const auto message = [](int64_t queries, int64_t keys, const RowShare& rows) {
    const Inputs in = {Normal({1, queries, 1, 4}, 1), Normal({1, keys, 1, 4}, 1), Normal({1, keys, 1, 4}, 1)};
    return ErrorOf([&] { RunOp("Attention", in, 1, WithRows({}, rows)); });
  };
  EXPECT_EQ(message(4, 8, {2, 1}), "");
  EXPECT_NE(message(4, 4, {2, 1}).find("C2"), std::string::npos);
  EXPECT_NE(message(4, 8, {1, 0}).find("C2"), std::string::npos);
  EXPECT_NE(message(3, 6, {2, 0}).find("C9: 3 queries of a share"), std::string::npos);
  EXPECT_NE(message(4, 8, {2, 2}).find("C9: row_share 2 of row_shares 2"), std::string::npos);
  EXPECT_NE(message(4, 8, {2, -1}).find("C9"), std::string::npos);
  EXPECT_NE(message(4, 0, {0, 0}).find("C9"), std::string::npos);
}

}  // namespace
}  // namespace weir
