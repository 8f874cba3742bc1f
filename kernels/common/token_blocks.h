#pragma once
#include <cstdint>

namespace weir {

// Rows of one canonical token block: a dense parameter gradient sums each block from zero in
// float32 and folds the blocks from the left, whatever the launch (part of the numerical
// definition).
inline constexpr int64_t kTokenBlockRows = 4096;

}  // namespace weir
