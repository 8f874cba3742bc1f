#pragma once
#include "graph/error.h"

namespace weir {

// Whether `label` of token `position` counts. Throws InvalidArgument when it is neither a class nor
// the ignored one. // C3
inline bool LabelCounts(int64_t label, int64_t position, int64_t vocabulary, int64_t ignore_index) {
  if (label == ignore_index) return false;
  WEIR_CHECK(label >= 0 && label < vocabulary, ErrorCode::kInvalidArgument, "CrossEntropy: label ",
             label, " at position ", position, " is outside [0,", vocabulary,
             ") and is not ignore_index ", ignore_index);
  return true;
}

}  // namespace weir
