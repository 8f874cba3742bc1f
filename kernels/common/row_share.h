#pragma once
#include <cstdint>

namespace weir {

// The rows of a sequence that one of `shares` equal ones holds: of 2*shares equal runs the `share`-th from the front and
// the `share`-th from the back, in this order, so that under a causal mask all shares cost the same. One share is the
// whole, in a single run.
struct RowShare {
  int64_t shares = 1, share = 0;

  int64_t runs() const { return shares == 1 ? 1 : 2; }
  // Which of the runs of all shares this share's i-th is.
  int64_t Run(int64_t i) const { return i == 0 ? share : 2 * shares - 1 - share; }
};

}  // namespace weir
