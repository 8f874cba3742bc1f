#include "tests/end_to_end/cover_pairs.h"

#include <algorithm>
#include <array>
#include <set>

#include "graph/error.h"

namespace weir {
namespace {

constexpr size_t kOpen = static_cast<size_t>(-1);  // a factor without value
using Pair = std::array<size_t, 4>;                // factor < other

Pair Ordered(size_t f, size_t v, size_t g, size_t w) { return f < g ? Pair{f, v, g, w} : Pair{g, w, f, v}; }

std::set<Pair> AllPairs(const std::vector<size_t>& sizes, const PairAllowed& allowed) {
  std::set<Pair> pairs;
  for (size_t f = 0; f < sizes.size(); ++f) {
    for (size_t g = f + 1; g < sizes.size(); ++g) {
      for (size_t v = 0; v < sizes[f]; ++v) {
        for (size_t w = 0; w < sizes[g]; ++w) {
          if (allowed(f, v, g, w)) pairs.insert({f, v, g, w});
        }
      }
    }
  }
  return pairs;
}

class Search {
 public:
  Search(const std::vector<size_t>& sizes, const PairAllowed& allowed, const std::set<Pair>& open)
      : sizes_(sizes), allowed_(allowed), open_(open) {}

  // Gives every open factor the value with most uncovered pairs; the first of equal ones, counted from `turn`. False: there is no such row.
  bool Complete(CoverRow& row, size_t turn) const {
    const size_t factor = static_cast<size_t>(std::find(row.begin(), row.end(), kOpen) - row.begin());
    if (factor == row.size()) return true;
    std::vector<std::pair<size_t, size_t>> order;  // least gain first
    for (size_t i = 0; i < sizes_[factor]; ++i) {
      const size_t value = (turn + i) % sizes_[factor];
      if (Fits(row, factor, value)) order.emplace_back(Gain(row, factor, value), value);
    }
    std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    for (const auto& [gain, value] : order) {
      row[factor] = value;
      if (Complete(row, turn)) return true;
    }
    row[factor] = kOpen;
    return false;
  }

 private:
  bool Fits(const CoverRow& row, size_t factor, size_t value) const {
    for (size_t f = 0; f < row.size(); ++f) {
      if (row[f] == kOpen || f == factor) continue;
      const Pair pair = Ordered(f, row[f], factor, value);
      if (!allowed_(pair[0], pair[1], pair[2], pair[3])) return false;
    }
    return true;
  }
  size_t Gain(const CoverRow& row, size_t factor, size_t value) const {
    size_t gain = 0;
    for (size_t f = 0; f < row.size(); ++f) {
      if (row[f] != kOpen && f != factor) gain += open_.count(Ordered(f, row[f], factor, value));
    }
    return gain;
  }

  const std::vector<size_t>& sizes_;
  const PairAllowed& allowed_;
  const std::set<Pair>& open_;
};

void Remove(const CoverRow& row, std::set<Pair>& pairs) {
  for (size_t f = 0; f < row.size(); ++f) {
    for (size_t g = f + 1; g < row.size(); ++g) pairs.erase({f, row[f], g, row[g]});
  }
}

}  // namespace

std::vector<CoverRow> CoverPairs(const std::vector<size_t>& sizes, const PairAllowed& allowed) {
  std::set<Pair> open = AllPairs(sizes, allowed);
  std::vector<CoverRow> rows;
  while (!open.empty()) {
    const auto [f, v, g, w] = *open.begin();
    CoverRow row(sizes.size(), kOpen);
    row[f] = v;
    row[g] = w;
    WEIR_CHECK(Search(sizes, allowed, open).Complete(row, rows.size()), ErrorCode::kInternal, "no row holds value ", v,
               " of factor ", f, " and value ", w, " of factor ", g);
    Remove(row, open);
    rows.push_back(std::move(row));
  }
  return rows;
}

size_t UncoveredPairs(const std::vector<CoverRow>& rows, const std::vector<size_t>& sizes, const PairAllowed& allowed) {
  std::set<Pair> open = AllPairs(sizes, allowed);
  for (const CoverRow& row : rows) Remove(row, open);
  return open.size();
}

}  // namespace weir
