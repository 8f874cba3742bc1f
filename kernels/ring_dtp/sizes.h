#pragma once
#include <cstdint>

#include "graph/graph.h"

namespace weir {

// How one RingDtp node cuts its work: `block` tokens times `strip` columns of logits live at a time; the weight
// of `window` columns is here at a time.
struct HeadSizes {
  int64_t tokens, channels, vocabulary, block, strip;
  int64_t leaf;           // columns of one (max, sum) pair
  int64_t ranks, window;  // one rank: the whole vocabulary is one window
  bool shard_gradient;    // dW is this rank's shard, summed over the group
  int64_t windows() const;
  // Token state: of a block where it meets the whole vocabulary at once, else of all tokens.
  int64_t state_rows() const { return windows() == 1 ? block : tokens; }
  // One strip holds the whole vocabulary: its logits are kept from the log-sum-exp to the
  // gradients.
  bool whole() const { return strip == vocabulary; }
  // Columns whose product is one addend of dX, where that is less than the product's own chains of 256.
  int64_t input_gradient_group() const;
};
HeadSizes HeadSizesOf(const Dims& x, const Dims& weight, const Attributes& attributes);
// The same with strips and windows cut at multiples of `unit` columns.
void AlignStrips(HeadSizes& sizes, int64_t unit);

}  // namespace weir
