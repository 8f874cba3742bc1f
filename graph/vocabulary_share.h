#pragma once
#include <algorithm>

#include "graph/layout.h"

namespace weir {

// Columns of the vocabulary that member `member` of `ranks` holds: a run of whole leaves of `leaf` columns, the
// last one cut at the vocabulary's end. Empty where there are more ranks than leaves.
inline Share VocabularyShare(int64_t vocabulary, int64_t leaf, int64_t ranks, int64_t member) {
  const Share leaves = ShareOf((vocabulary + leaf - 1) / leaf, ranks, member);
  return {std::min(leaves.begin * leaf, vocabulary), std::min(leaves.end * leaf, vocabulary)};
}

}  // namespace weir
