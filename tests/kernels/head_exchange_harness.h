#pragma once
#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "graph/dtype.h"

namespace weir {

struct HeadExchangeCase {
  const char* name;
  int64_t ranks, heads, batch = 2, tokens = 5, channels = 3, piece = 2;
  int64_t sharing = 1;  // ranks that hold the same heads
  bool deal = false;    // each its share of the rows
  int64_t held() const { return std::max<int64_t>(1, heads * sharing / ranks); }
  int64_t first(int64_t rank) const { return rank / sharing * sharing * heads / ranks; }
  // Positions that a rank holds: all, or of 2 * sharing runs one from the front and one from the back.
  std::vector<int64_t> positions(int64_t rank) const {
    const int64_t whole = ranks * tokens, run = whole / (2 * sharing), member = rank % sharing;
    std::vector<int64_t> held;
    for (int64_t s = 0; s < whole; ++s) {
      if (!deal || s / run == member || (whole - 1 - s) / run == member) held.push_back(s);
    }
    return held;
  }
  int64_t rows() const { return deal ? ranks * tokens / sharing : ranks * tokens; }
  int64_t part_size() const { return batch * tokens * heads * channels; }
  int64_t heads_size() const { return batch * rows() * held() * channels; }
  // Element of a rank's part and of a rank's heads.
  size_t Part(int64_t b, int64_t s, int64_t h, int64_t d) const {
    return static_cast<size_t>(((b * tokens + s) * heads + h) * channels + d);
  }
  size_t Heads(int64_t b, int64_t s, int64_t j, int64_t d) const {
    return static_cast<size_t>(((b * rows() + s) * held() + j) * channels + d);
  }
};
inline void PrintTo(const HeadExchangeCase& one, std::ostream* out) { *out << one.name; }

template <class T>
using PerRank = std::vector<std::vector<T>>;

// The definition, for every rank: rank r holds heads first(r) and on, of its positions.
template <class T>
PerRank<T> ToHeads(const HeadExchangeCase& c, const PerRank<T>& x) {
  PerRank<T> y(x.size(), std::vector<T>(static_cast<size_t>(c.heads_size())));
  for (int64_t r = 0; r < c.ranks; ++r)
    for (int64_t b = 0; b < c.batch; ++b)
      for (int64_t row = 0; row < c.rows(); ++row)
        for (int64_t j = 0; j < c.held(); ++j)
          for (int64_t d = 0; d < c.channels; ++d) {
            const int64_t s = c.positions(r)[static_cast<size_t>(row)];
            const auto owner = static_cast<size_t>(s / c.tokens);
            y[static_cast<size_t>(r)][c.Heads(b, row, j, d)] = x[owner][c.Part(b, s % c.tokens, c.first(r) + j, d)];
          }
  return y;
}

template <class T>
PerRank<T> ToSequence(const HeadExchangeCase& c, const PerRank<T>& x) {
  PerRank<T> y(x.size(), std::vector<T>(static_cast<size_t>(c.part_size())));
  for (int64_t r = 0; r < c.ranks; ++r)
    for (int64_t b = 0; b < c.batch; ++b)
      for (int64_t row = 0; row < c.rows(); ++row)
        for (int64_t j = 0; j < c.held(); ++j)
          for (int64_t d = 0; d < c.channels; ++d) {
            const int64_t s = c.positions(r)[static_cast<size_t>(row)];
            const auto owner = static_cast<size_t>(s / c.tokens);
            y[owner][c.Part(b, s % c.tokens, c.first(r) + j, d)] += x[static_cast<size_t>(r)][c.Heads(b, row, j, d)];
          }
  return y;
}

PerRank<double> Draw(const HeadExchangeCase& c, int64_t size, uint32_t seed);

struct HeadExchangeResult {
  PerRank<float> y, dx;
};
// The op and its gradient's nodes on one thread per rank, over poisoned arenas; on GPUs each rank has one, and values
// are `dtype`.
HeadExchangeResult RunHeadExchange(const HeadExchangeCase& c, const std::string& op, const PerRank<double>& x, const PerRank<double>& dy);
HeadExchangeResult RunHeadExchangeOnGpus(const HeadExchangeCase& c, const std::string& op, const PerRank<double>& x, const PerRank<double>& dy,
                                         DType dtype);

}  // namespace weir
