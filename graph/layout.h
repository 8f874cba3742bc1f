#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace weir {

// How W ranks share the work. All ranks hold distinct tokens (unless context_parallel > 1); each degree
// divides W, and its groups are runs of that many consecutive ranks:
//   "world"               0 .. W-1
//   "expert"              E_p consecutive ranks; member i owns the i-th share of the experts
//   "replica"             the W/E_p ranks at the same place of their expert groups (stride E_p)
//   "vocabulary"          P consecutive ranks; member i owns the i-th share of the vocabulary leaves
//   "vocabulary_replica"  the W/P ranks at the same place of their vocabulary groups (stride P)
//   "context"             C consecutive ranks; member i holds the i-th part of the sequence
//   "context_replica"     the W/C ranks with the same part of the sequence (stride C)
struct Layout {
  int64_t world = 1;
  int64_t expert_parallel = 1, vocabulary_parallel = 1, context_parallel = 1;

  // Throws InvalidArgument naming every degree that is not positive or does not divide `world`.
  void Validate() const;
  // Global ranks of `rank`'s group, ascending. Throws InvalidArgument listing the known names.
  std::vector<int64_t> Members(std::string_view group, int64_t rank) const;
  int64_t GroupSize(std::string_view group) const;
};

// Share of `index` when `count` things are dealt to `parts`: the first count mod parts get one more.
struct Share {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};
Share ShareOf(int64_t count, int64_t parts, int64_t index);

}  // namespace weir
