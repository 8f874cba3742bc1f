#pragma once
#include <cstdint>

#include "graph/graph.h"
#include "graph/layout.h"

namespace weir {

// How one RingDtp node cuts its work: `block` tokens times `strip` columns of logits live at a time; the weight
// of `window` columns is here at a time. With `relay` the weight stays and tokens travel, `block` at a time.
struct HeadSizes {
  int64_t tokens, channels, vocabulary, block, strip;
  int64_t leaf;           // columns of one (max, sum) pair
  int64_t share;          // ranks hold runs of so many columns, whole leaves
  int64_t ranks, window;  // one rank: the whole vocabulary is one window
  bool shard_gradient;    // dW is this rank's shard, summed over the group
  bool relay;
  int64_t windows() const;
  // A block meets the whole vocabulary before the next one does.
  bool at_once() const { return windows() == 1 && !relay; }
  // Token state: of a block, or of all tokens.
  int64_t state_rows() const { return at_once() ? block : tokens; }
  // One strip holds the whole vocabulary: its logits are kept from the log-sum-exp to the
  // gradients.
  bool whole() const { return strip == vocabulary && !relay; }
  Share Held(int64_t member) const;  // columns
  // Columns whose product is one addend of dX, where that is less than the product's own chains of 256.
  int64_t input_gradient_group() const;
};
HeadSizes HeadSizesOf(const Dims& x, const Dims& weight, const Attributes& attributes);
// The same with strips and windows cut at multiples of `unit` columns.
void AlignStrips(HeadSizes& sizes, int64_t unit);

}  // namespace weir
