#include "kernels/ring_dtp/member_tree.h"

#include <algorithm>

namespace weir {
namespace {

// Sums that end with `member`: t(a..b) = t(a..m) + t(m..b) with b = member + 1.
int64_t SumsEndingWith(int64_t member, int64_t ranks) {
  int64_t a = 0, b = ranks, sums = 0;
  while (b - a > 1) {
    const int64_t m = a + (b - a) / 2;
    if (b == member + 1) ++sums;
    (member < m ? b : a) = m;
  }
  return sums;
}

}  // namespace

int64_t MemberTree::Buffers(int64_t ranks) {
  int64_t depth = 0, most = 0;
  for (int64_t member = 0; member < ranks; ++member) {
    most = std::max(most, depth + 1);
    depth += 1 - SumsEndingWith(member, ranks);
  }
  return most;
}

void MemberTree::Finish(const AddInto& add) {
  ++depth_;
  for (int64_t sums = SumsEndingWith(member_++, ranks_); sums > 0; --sums, --depth_) {
    add(buffers_ + (depth_ - 2) * count_, buffers_ + (depth_ - 1) * count_);
  }
}

}  // namespace weir
