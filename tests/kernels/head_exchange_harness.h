#pragma once
#include <ostream>
#include <string>
#include <vector>

#include "graph/dtype.h"

namespace weir {

struct HeadExchangeCase {
  const char* name;
  int64_t ranks, heads, batch = 2, tokens = 5, channels = 3, piece = 2;
  int64_t held() const { return heads < ranks ? 1 : heads / ranks; }
  int64_t part_size() const { return batch * tokens * heads * channels; }
  int64_t heads_size() const { return batch * ranks * tokens * held() * channels; }
  // Element of a rank's part and of a rank's heads.
  size_t Part(int64_t b, int64_t s, int64_t h, int64_t d) const {
    return static_cast<size_t>(((b * tokens + s) * heads + h) * channels + d);
  }
  size_t Heads(int64_t b, int64_t s, int64_t j, int64_t d) const {
    return static_cast<size_t>(((b * ranks * tokens + s) * held() + j) * channels + d);
  }
};
inline void PrintTo(const HeadExchangeCase& one, std::ostream* out) { *out << one.name; }

template <class T>
using PerRank = std::vector<std::vector<T>>;

// The definition, for every rank: rank r holds heads r*heads/ranks and on, of all positions.
template <class T>
PerRank<T> ToHeads(const HeadExchangeCase& c, const PerRank<T>& x) {
  PerRank<T> y(x.size(), std::vector<T>(static_cast<size_t>(c.heads_size())));
  for (int64_t r = 0; r < c.ranks; ++r)
    for (int64_t b = 0; b < c.batch; ++b)
      for (int64_t s = 0; s < c.ranks * c.tokens; ++s)
        for (int64_t j = 0; j < c.held(); ++j)
          for (int64_t d = 0; d < c.channels; ++d) {
            const auto owner = static_cast<size_t>(s / c.tokens);
            y[static_cast<size_t>(r)][c.Heads(b, s, j, d)] = x[owner][c.Part(b, s % c.tokens, r * c.heads / c.ranks + j, d)];
          }
  return y;
}

template <class T>
PerRank<T> ToSequence(const HeadExchangeCase& c, const PerRank<T>& x) {
  PerRank<T> y(x.size(), std::vector<T>(static_cast<size_t>(c.part_size())));
  for (int64_t r = 0; r < c.ranks; ++r)
    for (int64_t b = 0; b < c.batch; ++b)
      for (int64_t s = 0; s < c.ranks * c.tokens; ++s)
        for (int64_t j = 0; j < c.held(); ++j)
          for (int64_t d = 0; d < c.channels; ++d) {
            const auto owner = static_cast<size_t>(s / c.tokens);
            y[owner][c.Part(b, s % c.tokens, r * c.heads / c.ranks + j, d)] += x[static_cast<size_t>(r)][c.Heads(b, s, j, d)];
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
