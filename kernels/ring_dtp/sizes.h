#pragma once
#include <cstdint>

#include "graph/graph.h"

namespace weir {

// How one RingDtp node cuts its work: `block` tokens times `strip` columns of logits live at a
// time.
struct HeadSizes {
  int64_t tokens, channels, vocabulary, block, strip;
  // One strip holds the whole vocabulary: its logits are kept from the log-sum-exp to the
  // gradients.
  bool whole() const { return strip == vocabulary; }
};
HeadSizes HeadSizesOf(const Dims& x, const Dims& weight, const Attributes& attributes);

}  // namespace weir
